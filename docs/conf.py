"""How the pages are built: Markdown pages, docstrings of the public names, every example run.

A fenced block in a page that is marked `python` is an example: with prompts it is a doctest, without it has
to run. The blocks of a page share their names. Not here: the examples in docstrings, which pytest runs.
"""

import doctest
import inspect
import os
import re

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_TRACEBACK_FILTERING"] = "off"  # JAX would add a note to the message of each exception

from docutils import nodes
from sphinx.application import Sphinx

import erythroxy_tx

project = "erythroxy_tx"
author = "the erythroxy_tx authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "erythroxy_tx"
html_show_copyright = False

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Only what `import erythroxy_tx as tx` and `tx.testing` give has an entry here. Types of JAX, numpy and the
# standard library would need their inventories from the network.
nitpick_ignore_regex = [("py:.*", r"(?!erythroxy_tx\.(testing\.)?\w+$).*")]

EXAMPLE_OR_CODE = re.compile(r"^ *>>>[\s\S]*?(?=\n *\n|\Z)|(?<![`:])`([^`]+)`(?!`)", re.MULTILINE)

# Sphinx's own default does not compare the messages of exceptions.
doctest_default_flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.DONT_ACCEPT_TRUE_FOR_1
doctest_test_doctest_blocks = ""  # those of docstrings: pytest runs them
# A function of a page is like one of a script. One process runs all pages, and `host_flat` looks at so many objects and
# no more: those that the pages before have left are set aside.
doctest_global_setup = "__name__ = '__main__'; import gc; gc.collect(); gc.freeze(); del gc"


def rewrite_docstring(app: Sphinx, what, name, obj, options, lines: list[str]) -> None:
    """Turn the Markdown that docstrings use into reStructuredText: code spans and hanging lines."""
    bullet = None
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.startswith("- ", indent):
            bullet = indent
        elif line and bullet is not None:
            bullet = bullet if indent > bullet else None
            lines[number] = line if bullet is None else " " * (bullet + 2) + line.lstrip()
    text = EXAMPLE_OR_CODE.sub(lambda found: rf"``{found[1]}``\ " if found[1] else found[0], "\n".join(lines))
    lines[:] = text.split("\n")


def show_public_bases(app: Sphinx, name, obj, options, bases: list) -> None:
    """Name a base class as its reader imports it."""
    for number, base in enumerate(bases):
        public = getattr(erythroxy_tx, base.__name__, None) if inspect.isclass(base) else None
        if public is base:
            bases[number] = f":py:exc:`~erythroxy_tx.{base.__name__}`"


def run_fenced_examples(app: Sphinx, doctree: nodes.document) -> None:
    """Hand the fenced `python` blocks to the doctest builder."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") == "python":
            block["testnodetype"] = "doctest" if block.astext().startswith(">>>") else "testcode"
            block["groups"] = ["default"]
            block["options"] = {}


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", rewrite_docstring)
    app.connect("autodoc-process-bases", show_public_bases)
    app.connect("doctree-read", run_fenced_examples)
