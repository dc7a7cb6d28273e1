"""The names of settings and flags that the installed JAX and its plugins know, read from their files: the words
`JAX_...` and `XLA_...` of the sources, and the flags in the compiled libraries.
"""

import difflib
import importlib.util
import mmap
import re
from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import Path

_PACKAGES = ("jax", "jaxlib", "jax_plugins", "jax_cuda12_plugin", "jax_cuda13_plugin")
_LIBRARIES = (".so", ".dylib", ".dll", ".pyd")
_SETTING = re.compile(rb"\b(?:JAX|XLA)_[A-Z0-9_]+")
_IN_LIBRARY = re.compile(rb"(?:JAX|XLA)_[A-Z0-9_]{3,80}(?=\0)")  # a string of C ends so
_FLAG = re.compile(rb"xla_[a-z0-9_]{3,80}(?=\0)")


def setting_names(wanted: Iterable[str]) -> frozenset[str]:
    """The settings that some file mentions. Libraries are read only if no source mentions all that is `wanted`."""
    found: set[bytes] = set()
    for file in _files(".py"):
        found.update(_SETTING.findall(file.read_bytes()))
    if not {name.encode() for name in wanted} <= found:
        found |= _in_libraries(_IN_LIBRARY)
    return frozenset(name.decode() for name in found)


def flag_names() -> frozenset[str]:
    """The flags of XLA_FLAGS, among other words of that form."""
    return frozenset(name.decode() for name in _in_libraries(_FLAG))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` is probably meant to be."""
    found = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.85)
    return found[0] if found else None


def holding(word: str, known: Iterable[str]) -> str | None:
    """The shortest known word that has all parts of `word` in order, if there is one: JAX_COMPILATION_CACHE_DIR has
    those of JAX_CACHE_DIR.
    """
    pattern = re.compile("_(?:.*_)?".join(map(re.escape, word.split("_"))))
    found = sorted((name.count("_"), name) for name in known if pattern.fullmatch(name))
    is_one = len(found) == 1 or (len(found) > 1 and found[0][0] < found[1][0])
    return found[0][1] if is_one and word.count("_") > 1 else None  # of one part, chance


def _in_libraries(pattern: re.Pattern[bytes]) -> set[bytes]:
    found: set[bytes] = set()
    for file in (file for suffix in _LIBRARIES for file in _files(suffix)):
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found.update(pattern.findall(content))
    return found


def _files(suffix: str) -> Iterator[Path]:
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)  # imports nothing
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from (path for path in Path(folder).rglob(f"*{suffix}") if path.stat().st_size > 0)
