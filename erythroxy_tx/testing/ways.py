"""The ways in which a function is called that a transform must survive: each turns a function of arrays into another
one, whose values and derivatives are compared. Not here: how they are compared.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from erythroxy_tx.testing.placed import as_method
from erythroxy_tx.testing.placed import as_module
from erythroxy_tx.testing.placed import by_keyword
from erythroxy_tx.testing.placed import unpickled

Fn = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of calling a function of leaves.

    - `build`: (function of leaves, how many leaves its first argument has) → a function of the leaves, and with
      `paired` of as many again, that returns a list of results like the function's.
    - `results`: what its results are called. `tangents`: how many of them, the last, are derivatives.
    - `paired`: whether it takes two inputs, and so sees whether they are mixed.
    - `gradients`: whether it is compared through its derivatives as well as its values.
    - `place`: where the candidate is put before it is called.
    - `direct`: whether it is called outside a trace, as its user does.
    - `traced`: whether it is called inside one.
    """

    build: Callable[[Fn, int], Fn]
    results: tuple[str, ...] = ("the result",)
    tangents: int = 0
    paired: bool = False
    gradients: bool = True
    place: Callable[[Fn], Fn] | None = None
    direct: bool = False
    traced: bool = True


def _itself(call: Fn, _: int) -> Fn:
    return lambda *leaves: [call(*leaves)]


def _vmap(call: Fn, first: int) -> Fn:
    def run(*leaves: Any) -> list[Any]:
        alone, both = leaves[: len(leaves) // 2], _stacked(leaves)
        results = [jax.vmap(call)(*both)]
        if 0 < first < len(alone):
            rest = len(alone) - first
            results.append(jax.vmap(call, [0] * first + [None] * rest)(*both[:first], *alone[first:]))
            results.append(jax.vmap(call, [None] * first + [0] * rest)(*alone[:first], *both[first:]))
        return results

    return run


def _scan(call: Fn, _: int) -> Fn:
    def run(*leaves: Any) -> list[Any]:
        return [lax.scan(lambda step, each: (step + 1, call(*each)), 0, _stacked(leaves))[1]]

    return run


def _remat(call: Fn, _: int) -> Fn:
    return lambda *leaves: [jax.checkpoint(call)(*leaves)]


def _jvp(call: Fn, _: int) -> Fn:
    def run(*leaves: Any) -> list[Any]:
        smooth = [i for i, leaf in enumerate(leaves) if is_smooth(leaf)]

        def of_smooth(*moved: Any) -> Any:
            at = dict(zip(smooth, moved, strict=True))
            return call(*(at.get(i, leaf) for i, leaf in enumerate(leaves)))

        points = [jnp.asarray(leaves[i]) for i in smooth]
        return list(jax.jvp(of_smooth, points, [jnp.ones_like(point) for point in points]))

    return run


def _stacked(leaves: tuple) -> list[Any]:
    half = len(leaves) // 2
    return [jnp.stack(pair) for pair in zip(leaves[:half], leaves[half:], strict=True)]


def is_smooth(leaf: Any) -> bool:
    """Whether a leaf can be differentiated: a float or a complex number."""
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def _put(place: Callable[[Fn], Fn] | None) -> Way:
    return Way(_itself, gradients=False, place=place, direct=True)


_PART = "with only the first argument"

WAYS = {
    "jit": _put(None),
    "vmap": Way(_vmap, ("the result", f"the result, {_PART} batched", f"the result, {_PART} shared"), paired=True),
    "grad": Way(_itself),
    "scan": Way(_scan, paired=True),
    "method": _put(as_method),
    "remat": Way(_remat),
    "jvp": Way(_jvp, ("the result", "the tangent of the result"), tangents=1, gradients=False),
    "eager": Way(_itself, gradients=False, direct=True, traced=False),
    "module": _put(as_module),
    "kwargs": _put(by_keyword),
    "pickle": _put(unpickled),
}
