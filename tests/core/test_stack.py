"""A stack as a whole: its transforms, the function inside, and what it promises."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx

X = jnp.ones((8, 3))


def f(x: Any) -> Any:
    return {"rows": x[:, ::-1], "sum": x.sum(0)}


def chunked(fn: Any, size: int = 2) -> Any:
    return tx.chunked(jax.lax.map, size=size, out={"rows": "rows", "sum": "sum"})(fn)


def test_from_the_outside_in() -> None:
    inner = chunked(f)
    middle = tx.vram_resident(inner)
    outer = tx.assert_relocation(lambda x: x)(middle)
    assert [id(one) for one in tx.stack(outer)] == [id(outer), id(middle), id(inner)]
    assert [one.name for one in tx.stack(outer)] == ["tx.assert_relocation", "tx.vram_resident", "tx.chunked"]
    assert tx.unwrap(outer) is f


@pytest.mark.parametrize("plain", [f, len, jax.jit(f), functools.partial(f), eqx.nn.Identity()])
def test_a_plain_callable(plain: Any) -> None:
    assert tx.stack(plain) == []
    assert tx.unwrap(plain) is plain


def test_a_jitted_wrapper_is_a_plain_callable() -> None:
    """What another library wraps around is not ours to see through."""
    assert tx.stack(jax.jit(chunked(f))) == []


def test_the_promise_has_the_structure_of_the_result() -> None:
    assert tx.contract(chunked(f), X) == {"rows": tx.Bitwise(), "sum": tx.AsAccurate(4)}
    assert tx.contract(f, X) == {"rows": tx.Bitwise(), "sum": tx.Bitwise()}
    assert tx.contract(tx.vram_resident(f), X) == {"rows": tx.Bitwise(), "sum": tx.Bitwise()}
    assert tx.contract(tx.vram_resident(chunked(f)), X) == tx.contract(chunked(f), X)


def test_two_lossy_transforms_promise_less_than_one() -> None:
    assert tx.contract(chunked(chunked(f)), X)["sum"] == tx.AsAccurate(16)


def test_nothing_is_run() -> None:
    structs = jax.ShapeDtypeStruct((8, 3), jnp.float32)
    assert tx.contract(chunked(f), structs) == tx.contract(chunked(f), np.ones((8, 3), np.float32))


def test_static_arguments() -> None:
    def g(x: Any, mode: str) -> Any:
        return x if mode == "one" else (x, x)

    wrapped = tx.vram_resident(g)
    assert tx.contract(wrapped, X, "one") == tx.Bitwise()
    assert tx.contract(wrapped, X, mode="two") == (tx.Bitwise(), tx.Bitwise())


def test_named_static_arguments() -> None:
    wrapped = tx.vram_resident(lambda x, n: [x] * n, static_argnames="n")
    assert tx.contract(wrapped, X, n=2) == [tx.Bitwise()] * 2
    assert tx.contract(wrapped, X, 3) == [tx.Bitwise()] * 3


def test_methods() -> None:
    class Model:
        @tx.chunked(jax.lax.map, size=2, out="sum")
        def total(self, x: Any) -> Any:
            return x.sum(0)

    assert tx.contract(Model().total, X) == tx.AsAccurate(4)
