"""Values written as code come back bit for bit, and the script that makes a call again runs."""

import base64
import collections
import dataclasses
import zlib
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx
from erythroxy_tx.testing import arrays
from erythroxy_tx.testing import pytrees
from erythroxy_tx.testing.reproduce import as_code
from erythroxy_tx.testing.reproduce import in_code
from erythroxy_tx.testing.reproduce import script

NAN, INF = np.nan, np.inf
BF16 = jnp.dtype("bfloat16")
SCOPE = {"np": np, "jnp": jnp, "jax": jax, "base64": base64, "zlib": zlib, "OrderedDict": collections.OrderedDict}


Point = collections.namedtuple("Point", ["x", "y"])  # noqa: PYI024


@dataclasses.dataclass
class Options:
    rate: Any
    steps: int = 3


def again(value: Any) -> Any:
    return eval(as_code(value), {**SCOPE, "Point": Point, "Options": Options})


def bits(value: Any) -> Any:
    """What tells one value from another: types, dtypes and every bit."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return "key", str(jax.random.key_impl(value)), bits(jax.random.key_data(value))
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        host = np.asarray(value)
        return type(value), host.dtype, host.shape, host.tobytes(), getattr(value, "weak_type", False)
    if isinstance(value, (float, complex)):
        return type(value), np.asarray(value).tobytes()
    if dataclasses.is_dataclass(value):
        return type(value), bits(vars(value))
    if isinstance(value, dict):
        return type(value), [(key, bits(each)) for key, each in value.items()]
    if isinstance(value, (tuple, list)):
        return type(value), list(map(bits, value))
    return type(value), value


def random(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=shape) * 100).astype(dtype)


VALUES: dict[str, Any] = {
    "int": -3,
    "large int": 2**70,
    "bool": True,
    "float": 0.1,
    "float of no number": [NAN, INF, -INF, -0.0],
    "text": "a\n'b'",
    "none": None,
    "scalars": (np.float32(0.1), np.int8(-3), np.bool_(1), np.float16(NAN), np.complex64(complex(-0.0, INF))),
    "float32": np.array([[0.1, -0.0, NAN], [INF, -INF, 1e-45]], "float32"),
    "float64": np.array([0.1, 1e300, -0.0]),
    "float16": np.array([0.1, 65504, 6e-8], "float16"),
    "bfloat16": np.array([0.1, 3e38, NAN, -INF], BF16),
    "complex64": np.array([complex(-0.0, NAN), complex(0.1, -0.0)], "complex64"),
    "int32": np.array([[1, -2], [2**31 - 1, -(2**31)]], "int32"),
    "uint64": np.array([0, 2**64 - 1], "uint64"),
    "bools": np.array([True, False]),
    "big-endian": np.array([1, 2], ">f4"),
    "of no dimension": np.array(0.1, "float32"),
    "empty": np.zeros((0, 3), "int16"),
    "empty bfloat16": np.zeros((2, 0), BF16),
    "constant": np.full((2, 3), -0.0, "float32"),
    "zeros of both signs": np.array([0.0, -0.0], "float32"),
    "constant bfloat16": np.full(4, 0.1, BF16),
    "constant NaN": np.full(4, NAN, "float32"),
    "long": random("float32", (50, 10)),
    "long bfloat16": random(BF16, (500,)),
    "long bools": random("float32", (500,)) > 0,
    "long zeros": np.zeros(1000, "int8"),
    "transposed": random("float64", (20, 30)).T,
    "short and transposed": random("float64", (2, 3)).T,
    "strided": random("float32", (40, 50))[::2, ::3],
    "jax": jnp.arange(3),
    "jax bfloat16": jnp.array([0.1, 2], BF16),
    "key": jax.random.key(3),
    "keys of another kind": jax.random.wrap_key_data(np.arange(8, dtype="uint32").reshape(2, 4), impl="rbg"),
    "old key": jax.random.PRNGKey(3),
    "nested": {"a": (1, [np.float32(2)], {}), 3: ((),), "b": [None, (0.5,)]},
    "named tuple": Point(-0.0, np.arange(2)),
    "dataclass": Options(np.float32(1), 4),
    "list of dataclasses": [Options({"x": Point(1, 2)})],
    "weak": jnp.asarray(0.5),
    "negative zero bfloat16": np.array([-0.0, 1], BF16),
    "constant negative zero bfloat16": np.full(3, -0.0, BF16),
    "complex": [complex(-0.0, 0.0), complex(0.0, -0.0)],
    "complex of no number": complex(NAN, INF),
    "array of text": np.array(["a", "b"]),
    "ordered dict": collections.OrderedDict(a=np.arange(2000)),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_bit_for_bit(value: Any) -> None:
    assert bits(again(value)) == bits(value)


DTYPES = ["float16", "float32", "float64", "complex64", "complex128", "int8", "uint32", "int64", "bool"]


@hypothesis.settings(max_examples=60)
@hypothesis.given(arrays(st.sampled_from(DTYPES), allow_subnormal=True))
def test_drawn_arrays_come_back(x: np.ndarray) -> None:
    assert bits(again(x)) == bits(x)


@pytest.mark.parametrize("dtype", ["float16", BF16])
def test_every_narrow_float_comes_back(dtype: Any) -> None:
    every = np.arange(2**16, dtype="uint16").view(dtype)
    for x in np.array_split(every[~np.isnan(every.astype("float32"))], 200):
        assert len(x) < 400  # longer arrays are written as bytes
        assert bits(again(x)) == bits(x)


@hypothesis.settings(max_examples=30)
@hypothesis.given(pytrees(arrays("int8", 2)))
def test_drawn_pytrees_come_back(tree: Any) -> None:
    from erythroxy_tx.testing.strategies import Pair

    assert bits(eval(as_code(tree), {**SCOPE, "Pair": Pair})) == bits(tree)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"x": np.float32([[-0.0, NAN]]), "n": 3}, "{'x': np.array([[-0.0, np.nan]], 'float32'), 'n': 3}"),
        ((np.int8(3),), "(np.array(3, 'int8')[()],)"),
        (np.ones((2, 3)), "np.full((2, 3), 1.0, 'float64')"),
        (np.zeros((0, 3), BF16), "np.zeros((0, 3), jnp.bfloat16)"),
        (jnp.array([1, 2]), "jnp.asarray(np.array([1, 2], 'int32'))"),
        (Point(0.1, -INF), "Point(0.1, -np.inf)"),
        (Options(1.0), "Options(rate=1.0, steps=3)"),
    ],
)
def test_code_is_what_a_person_would_write(value: Any, code: str) -> None:
    assert as_code(value) == code


def test_long_arrays_are_short_code() -> None:
    assert len(as_code(np.zeros(10**6, "float32"))) < 10_000
    assert len(as_code(np.tile(random("float32", (100,)), 100))) < 3_000


def test_contracts_are_written_as_their_user_does() -> None:
    assert in_code(tx.Close(rtol=1e-6)) == "tx.Close(rtol=1e-06)"
    assert eval(in_code(tx.Bitwise()), {"tx": tx}) == tx.Bitwise()
    tree = {"a": (tx.Bitwise(), [tx.Close(0.5)]), "b": tx.AsAccurate(3)}
    assert eval(in_code(tree), {"tx": tx}) == tree


def total(x: Any, *rest: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sum(), x), len(rest)


batched = jax.vmap(total)


def run(text: str) -> dict[str, Any]:
    """What a script leaves behind."""
    assert text.startswith("# To see it again:\nimport ")
    scope: dict[str, Any] = {}
    exec(compile(text, "<script>", "exec"), scope)
    return scope


@pytest.mark.parametrize(
    "args",
    [
        (np.arange(3.0),),
        (random("float32", (500,)), 2),
        (jnp.ones(3, BF16), jax.random.key(0)),
        (np.ones(2), Point(1, 2)),
        (np.ones(2), Options(1)),
    ],
    ids=["short", "long", "keys", "named tuple", "dataclass"],
)
def test_the_script_runs(args: tuple) -> None:
    scope = run(script({"f": total, "g": jnp.sin, "h": np.linalg.norm}, args, "found = f(*args), g(0.0), h([3, 4])"))
    assert bits(scope["args"]) == bits(args)
    assert (scope["f"], scope["g"], scope["h"]) == (total, jnp.sin, np.linalg.norm)
    assert bits(scope["found"][0]) == bits(total(*args))


def test_a_script_imports_what_it_needs() -> None:
    plain = script({"f": total}, (np.ones(2),), "f(*args)")
    assert "zlib" not in plain
    assert "jax" not in plain
    assert f"from {__name__} import total as f" in plain
    assert f"from {__name__} import total\n" in script({"total": total}, (1,), "total(*args)")
    assert "import zlib" in script({"f": total}, (random("float64", (500,)),), "f(*args)")


def test_what_cannot_be_imported_is_named_in_a_comment() -> None:
    def inner(x: Any) -> Any:
        return x

    text = script({"f": lambda x: x, "g": inner}, (1,), "args")
    assert "\n# f is test_what_cannot_be_imported_is_named_in_a_comment.<locals>.<lambda>, of " in text
    assert f"<locals>.inner, of {__name__}\n" in text
    assert run(text)["args"] == (1,)


def test_another_function_of_the_same_name_is_not_imported() -> None:
    """`jax.vmap` and decorators keep the name and the module of the function inside."""
    assert run(script({"f": jax.vmap(jnp.sin)}, (1,), "args")).get("f") is not jnp.sin
    assert run(script({"f": batched}, (1,), "args")).get("f") is not total
