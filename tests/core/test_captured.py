"""Numpy arrays that are compiled into a program, by the names under which they were captured."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from erythroxy_tx.core.captured import captured_arrays

TABLE = np.arange(3, dtype=np.float32)
ON_DEVICE = jnp.ones(3)


def found(fn: Callable[..., Any], *args: Any) -> list[tuple[str, tuple[int, ...]]]:
    closed = jax.make_jaxpr(fn)(*args)
    return [(name, array.shape) for name, array, _ in captured_arrays(closed, fn)]


def of_global(x: Any) -> Any:
    return x + TABLE


def of_helper(x: Any) -> Any:
    return of_global(x) * 2


def of_default(x: Any, w: np.ndarray = np.ones(3, np.float32), *, k: np.ndarray = np.ones((1, 3), np.float32)) -> Any:  # noqa: B008
    return x + w + k


def closure() -> Callable[..., Any]:
    weights = np.full(3, 2, np.float32)
    return lambda x: x * weights


def in_scan() -> Callable[..., Any]:
    weights = np.full(3, 2, np.float32)
    return lambda x: jax.lax.scan(lambda c, _: (c * weights, None), x, length=2)[0]


def in_cond() -> Callable[..., Any]:
    weights = np.full(3, 2, np.float32)
    return lambda x: jax.lax.cond(x[0] > 0, lambda x: x * weights, lambda x: x, x)


@pytest.mark.parametrize(
    ("fn", "names"),
    [
        (of_global, ["TABLE"]),
        (of_helper, ["TABLE"]),
        (closure(), ["weights"]),
        (jax.jit(of_global), ["TABLE"]),
        (lambda x: x + np.float32(1), []),
        (lambda x: x + ON_DEVICE, []),
        (lambda x: x * 2, []),
    ],
)
def test_names(fn: Callable[..., Any], names: list[str]) -> None:
    assert found(fn, jnp.ones(3)) == [(name, (3,)) for name in names]


@pytest.mark.parametrize("make", [in_scan, in_cond, lambda: jax.jit(in_scan())])
def test_arrays_in_inner_programs(make: Callable[[], Any]) -> None:
    assert ("weights", (3,)) in found(make(), jnp.ones(3))


def test_defaults_and_unknown_names() -> None:
    assert sorted(shape for _, shape in found(of_default, jnp.ones(3))) == [(1, 3), (3,)]
    assert ("k", (1, 3)) in found(of_default, jnp.ones(3))
    assert found(functools.partial(jnp.add, TABLE.copy()), jnp.ones(3)) == [("an array", (3,))]
    assert found(lambda x: x + np.arange(3, dtype=np.float32), jnp.ones(3)) == [("an array", (3,))]


def test_functions_that_see_each_other() -> None:
    def odd(x: Any, n: int = 3) -> Any:
        return even(x, n - 1) if n else x

    def even(x: Any, n: int) -> Any:
        return odd(x, n - 1) if n else x + TABLE

    assert found(odd, jnp.ones(3)) in ([], [("TABLE", (3,))])
