"""The gradient of a function of the corpus as a stream, with respect to all of its floats, is that of the function.

A seeded slice by default and with `--erythroxy-profile=ci`, another one on each version of Python; every function with
`thorough`.
"""

import random
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.testing.judge import Judge

from . import ENTRIES
from . import Entry
from .test_streamed import refused

CASES = ((7, 2), (64, 16), (64, 10), (101, 25))  # rows, and rows of a chunk
SLICE = {None: 25, "fast": 25, "ci": 80}
_NONE = (NotImplementedError, TypeError, ValueError)  # what JAX raises where a function has no derivative
# Whose derivative is refused, and they are not; the page of rows says so.
_REFUSED = re.compile(
    "prod|cummax|cummin|cumlogsumexp|resize|minmax|Conv1d|switch in each row|drawdown|fori_loop over|frompyfunc reduce"
)
NEAR = 1e-4  # of the largest: further off, the judge asks how well the gradient is determined at all


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    profile = metafunc.config.getoption("--erythroxy-profile", default=None)
    chance = random.Random(1 + len(ENTRIES) + 1000 * sys.version_info.minor)  # other cases on each Python
    cases = [(entry, *chance.choice(CASES)) for entry in ENTRIES if entry.at_least <= CASES[0][0]]
    if profile in SLICE:
        cases = chance.sample(cases, SLICE[profile])
    metafunc.parametrize(
        ("entry", "rows", "size"),
        [pytest.param(*case, id=f"{case[0].name}, {case[1]} in chunks of {case[2]}") for case in cases],
    )


def test_gradient(entry: Entry, rows: int, size: int) -> None:
    args = entry.inputs(rows)
    floats = [i for i, x in enumerate(args) if jnp.issubdtype(jnp.result_type(x), jnp.floating)]
    streamed = tx.chunked(lax.map, size=size, in_axes=entry.in_axes)(entry.fn)
    try:
        want = _gradient(entry.fn, args, floats)
    except _NONE:
        with pytest.raises((tx.RowMixingError, *_NONE)):  # nor is there one of the stream
            _gradient(streamed, args, floats)
        return
    if want is None:
        return
    try:
        got = _gradient(streamed, args, floats)
    except tx.RowMixingError as error:
        if entry.name not in refused() and not _REFUSED.search(entry.name):
            raise AssertionError(f"the gradient of {entry.name} is refused, and the function is not") from error
        return
    assert got is not None
    if all(_near(a, b) for a, b in zip(want, got, strict=True)):
        return
    faults = Judge(entry.fn, streamed).findings("jit", args, gradients=True).faults
    assert not faults, "\n".join(faults)


def _gradient(fn: Callable[..., Any], args: tuple, floats: list[int]) -> list[Any] | None:
    """The gradient of a weighted sum of all floats of a result."""
    shapes = [x for x in jax.tree.leaves(jax.eval_shape(fn, *args)) if jnp.issubdtype(x.dtype, jnp.floating)]
    if not floats or not shapes:
        return None
    rng = np.random.default_rng(0)
    weights = [jnp.asarray(rng.normal(size=x.shape), x.dtype) for x in shapes]

    def weighted(*some: Any) -> Any:
        given = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in args]
        for i, x in zip(floats, some, strict=True):
            given[i] = x
        leaves = [x for x in jax.tree.leaves(fn(*given)) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum((x * w).sum().astype(jnp.float32) for x, w in zip(leaves, weights, strict=True))

    given = [args[i] for i in floats]
    try:
        return list(jax.jit(jax.grad(weighted, tuple(range(len(floats)))))(*given))
    except _NONE:
        jax.eval_shape(weighted, *given)  # what the function itself raises is no matter of its gradient
        raise


def _near(a: Any, b: Any) -> bool:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    finite = np.isfinite(a)
    if a.shape != b.shape or (np.isfinite(b) != finite).any():
        return False
    return np.abs(a - b)[finite].max(initial=0) <= NEAR * np.abs(a)[finite].max(initial=0)
