"""`erythroxy explain`: what a function of a module will do, from the shapes of its arguments."""

import argparse
import ast
import difflib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_EXAMPLES = """\
An argument is the type and shape of an array, a value of Python such as 0.1 or 'text', or :NAME, a name in the same
module, such as parameters. NAME=ARGUMENT passes it by name. The module is imported, as train:step or train.py:step;
the function is traced and compiled, not run.

With --chunks it is told what tx.chunked would make of a function that has no such decorator: arrays are rows along
their first axis, and what is passed by name, or is a name of the module, is whole.

Examples:
  erythroxy explain jax.nn:softmax "f32[1000,64]"
  erythroxy explain jax.numpy:median "f32[100000,64]" axis=1 --chunks 1000
  erythroxy explain jax.numpy:std "f32[1000,64]" axis=0 --chunks 100
"""
_CONSTANT = (bool, int, float, complex, str, tuple, type(None))  # what a function may decide on
_ARRAY = re.compile(r"(bool|bf16|[a-z]+\d+\w*)\[([\d,\s]*)\]")
_DTYPES = {
    "bool": "bool",
    "bf16": "bfloat16",
    **{
        f"{letter}{bits}": f"{name}{bits}" for letter, name in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)
    },
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"c{bits}": f"complex{bits}" for bits in (64, 128)},
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.epilog = _EXAMPLES
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="where it is: package.module:fit, or train.py:fit")
    parser.add_argument("--chunks", type=int, metavar="ROWS", help="as in chunks of so many rows")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help='such as "f32[1000,64]", 0.1, or name=3')


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation. Returns 0."""
    _import_jax()
    import jax

    import erythroxy_tx as tx

    module_name, colon, path = arguments.function.partition(":")
    if not (module_name and colon and path):
        raise ValueError(
            f"{arguments.function!r} is not a place of a function. Expected MODULE:FUNCTION, such as train:step."
        )
    module = _imported(module_name)
    function = _found(module, path)
    if not callable(function):
        raise ValueError(  # noqa: TRY004  # of the command, not of a call
            f"{arguments.function} is not a function: it is {type(function).__name__}."
        )
    args, kwargs = _parsed(arguments.arguments, module)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"{arguments.function} got {len(args) + len(kwargs)} arguments: {error}. "
            'Give them as in "f32[1000,64]" name=3.'
        ) from error

    if arguments.chunks is not None:
        axes = tuple(0 if isinstance(arg, jax.ShapeDtypeStruct) else None for arg in args)
        constants = {name: kwargs.pop(name) for name in list(kwargs) if isinstance(kwargs[name], _CONSTANT)}
        function = tx.chunked(jax.lax.map, size=arguments.chunks, in_axes=axes)(_with(function, constants))
    print(tx.explain(function, *args, **kwargs))
    if not tx.stack(function):
        print(
            "It has no decorator of ours. --chunks 100 tells what tx.chunked would make of it, in chunks of 100 rows."
        )
    return 0


def _with(function: Callable[..., Any], constants: dict[str, Any]) -> Callable[..., Any]:
    """The function with some arguments that are no inputs. Those of a `functools.partial` would be."""

    @functools.wraps(function)
    def fixed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs, **constants)

    return fixed


def _import_jax() -> None:
    """Import JAX. **Raises:** `ValueError` where it cannot be."""
    try:
        importlib.import_module("jax")
    except Exception as error:  # a broken installation raises anything
        raise ValueError(
            f"JAX cannot be imported: {type(error).__name__}: {error}. Fix: what erythroxy doctor says of it."
        ) from error


def _imported(name: str) -> ModuleType:
    """The module `name`, from here or from what is installed; or the file, where the name is one."""
    sys.path.insert(0, str(Path(name).resolve().parent if name.endswith(".py") else Path.cwd()))
    if not name.endswith(".py"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there, and what it imports is not
            raise ValueError(f"there is no module {error.name!r}, neither in {Path.cwd()} nor installed.") from error
    if not Path(name).is_file():
        raise ValueError(f"there is no file {name}.")
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _found(module: ModuleType, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            names = sorted(n for n in vars(module) if callable(getattr(module, n)) and n[0] != "_")
            near = difflib.get_close_matches(name, names) or names[:12]
            raise ValueError(f"{module.__name__} has no {path!r}. It has: {', '.join(near) or 'no callable'}.")
        found = getattr(found, name)
    return found


def _parsed(words: list[str], module: ModuleType) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            kwargs[name] = _argument(value, module)
        elif kwargs:
            raise ValueError(f"the argument {word!r} stands after one that is passed by name. Give it before.")
        else:
            args.append(_argument(word, module))
    return args, kwargs


def _argument(word: str, module: ModuleType) -> Any:
    if word.startswith(":"):
        return _found(module, word[1:])
    if match := _ARRAY.fullmatch(word.strip()):
        import jax

        if match[1] not in _DTYPES:
            raise ValueError(f"{word!r} has no type {match[1]!r}. Expected one of: {', '.join(_DTYPES)}.")
        shape = tuple(int(size) for size in match[2].split(",") if size.strip())
        dtype = jax.dtypes.canonicalize_dtype(_DTYPES[match[1]])
        if dtype.name != _DTYPES[match[1]]:
            raise ValueError(f"{word!r} is {dtype.name} unless JAX_ENABLE_X64=1 is set. Set it, or ask for 32 bits.")
        return jax.ShapeDtypeStruct(shape, dtype)
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(
            f"the argument {word!r} is neither an array such as f32[1000,64], nor a value of Python such as 0.1 or "
            "'text', nor :NAME for a name of the module."
        ) from error
