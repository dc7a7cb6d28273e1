"""The shape of the code itself: who may import whom, sizes, public names. Read from the source, not run."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import erythroxy_tx
import erythroxy_tx.errors

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "erythroxy_tx").rglob("*.py"))
FOLDERS = ("erythroxy_tx", "tests", "docs", "examples", "benchmarks", ".ci")

CORE = {"errors", "units", "progress", "_compat", "core"}
PROGRAM = CORE | {"program"}
COMPILING = CORE | {"compiling"}
TOP = (
    PROGRAM | COMPILING | {"transforms", "audit", "drivers", "explanation", "guards", "host", "measurement", "runtime"}
)
MAY_IMPORT = {
    "errors": set(),
    "units": set(),
    "progress": set(),
    "_compat": {"errors", "_compat"},
    "_compat_started": set(),
    "core": CORE,
    "program": PROGRAM,
    "compiling": COMPILING,
    "guards": CORE | {"guards", "host"},
    "drivers": PROGRAM | {"drivers", "host", "runtime"},
    "transforms": PROGRAM | COMPILING | {"drivers", "guards", "host"},
    "audit": PROGRAM | {"audit"},
    "explanation": PROGRAM | {"explanation"},
    "host": {"errors", "units", "progress", "host", "_compat_started"},
    "measurement": CORE | {"host", "measurement"},
    "runtime": CORE | {"guards", "host", "runtime"},
    "testing": TOP | {"testing", "erythroxy_tx"},
    "cli": TOP | {"cli", "erythroxy_tx"},
    "__main__": {"cli"},
    "__init__": TOP | {"testing"},
}
ONLY_TESTING = {"hypothesis", "chex", "pytest"}
UNSTABLE = re.compile(r"jax\.(_src|interpreters|extend)(\.|$)")
# What a machine would write into the tree. The brackets keep this line from matching itself.
MACHINE = re.compile(r"(?<![\w.])/(?:[w]ork|[r]oot|tmp/[v])/|work[p]lace")

each_file = pytest.mark.parametrize("path", PACKAGE, ids=lambda path: path.relative_to(ROOT).as_posix())


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module or name that is imported, at any depth of the file, as a dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(path: Path) -> str:
    return path.relative_to(ROOT / "erythroxy_tx").parts[0].removesuffix(".py")


def own_imports(path: Path) -> Iterator[tuple[str, str]]:
    """Pairs of a layer of ours and the dotted name that was imported from it."""
    for name in imports(parse(path)):
        first, *rest = name.split(".")
        if first == "erythroxy_tx":
            yield (rest[0] if rest and rest[0] in MAY_IMPORT else first), name


def transform(dotted: str) -> str | None:
    """`chunked` for `erythroxy_tx.transforms.chunked` and what is under it."""
    parts = dotted.split(".")
    return parts[2] if parts[:2] == ["erythroxy_tx", "transforms"] and len(parts) > 2 else None


@each_file
def test_imports_go_one_way(path: Path) -> None:
    assert layer(path) in MAY_IMPORT, "a new layer: state in MAY_IMPORT what it may import"
    allowed = MAY_IMPORT[layer(path)]
    own = transform(module_name(path))
    for target, name in own_imports(path):
        same_transform = own is not None and transform(name) == own
        assert target in allowed or same_transform, f"{layer(path)} imports {name}"


@each_file
def test_third_parties_stay_in_their_layer(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imports(parse(path))} - {"erythroxy_tx"}
    if layer(path) != "testing":
        assert not roots & ONLY_TESTING
    if layer(path) in {"host", "errors", "units"}:
        assert roots - sys.stdlib_module_names <= ({"psutil", "pynvml"} if layer(path) == "host" else set())


@each_file
def test_unstable_jax_is_in_one_place(path: Path) -> None:
    if layer(path) in {"_compat", "_compat_started"}:
        return
    tree = parse(path)
    used = set(imports(tree))
    used |= {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    assert not [name for name in used if UNSTABLE.match(name)]


@pytest.mark.parametrize("folder", ["erythroxy_tx", "examples"])
def test_files_are_short(folder: str) -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert not {str(path): length for path, length in lengths.items() if length > 320}


def says_nothing(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass | ast.Continue)


@each_file
def test_no_exception_is_swallowed(path: Path) -> None:
    for node in ast.walk(parse(path)):
        caught: list[ast.expr] = []
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"line {node.lineno}: bare except"
            if all(map(says_nothing, node.body)):
                caught = getattr(node.type, "elts", [node.type])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught = node.args
        blind = {ast.unparse(name) for name in caught} & {"Exception", "BaseException"}
        assert not blind, f"line {node.lineno}: {blind} is swallowed"


def test_importing_does_not_import_jax() -> None:
    host = [module_name(path) for path in PACKAGE if layer(path) == "host"]
    code = f"import sys, {', '.join(['erythroxy_tx', *host])}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_every_public_name_resolves() -> None:
    assert len(set(erythroxy_tx.__all__)) == len(erythroxy_tx.__all__)
    for name in erythroxy_tx.__all__:
        assert callable(getattr(erythroxy_tx, name)), name


def test_no_public_name_is_a_submodule() -> None:
    """Importing the submodule would put the module in the place of the name."""
    assert not {layer(path) for path in PACKAGE} & set(erythroxy_tx.__all__)


def test_every_error_is_public() -> None:
    assert {name for name, value in vars(erythroxy_tx.errors).items() if isinstance(value, type)} <= set(
        erythroxy_tx.__all__
    )


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    documented = re.findall(r"auto\w+:: erythroxy_tx\.(\w+)$", page, re.MULTILINE)
    assert sorted(documented) == sorted(erythroxy_tx.__all__)


def test_the_tree_speaks_of_no_machine() -> None:
    top = [path for path in ROOT.iterdir() if path.is_file()]
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    found = []
    for path in top + below:
        if {"_build", "__pycache__"} & set(path.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        found += [f"{path}: {match[0]}" for match in MACHINE.finditer(text)]
    assert not found
