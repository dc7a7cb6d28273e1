"""How a callable becomes a compiled program: traced, lowered, compiled, each apart. Not here: the runs.

Three kinds are told apart. A plain function is jitted here. A jitted function stages itself. A wrapper,
such as a transform of this library, jits inside its call or works on the host, so its call is what is
timed; where it has `lower`, that gives the program.
"""

import time
from collections.abc import Callable
from typing import Any
from typing import Literal

import equinox as eqx
import jax
import jax.tree_util as jtu

from erythroxy_tx.core.callables import opened
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.core.transform import unwrapped


class Staged:
    """One callable with its arguments, on the way to a compiled program.

    **Attributes:**

    - `kind`: `"plain"`, `"jitted"` or `"wrapper"`.
    - `traced`: the `jax.stages.Traced` of a plain or jitted function.
    - `lowered`: the `jax.stages.Lowered`, or None for a wrapper that has no `lower`.
    - `trace_seconds`: tracing and lowering, or None likewise.
    - `donates`: whether a call consumes its arguments.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]):
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.kind = _kind(fn)
        self.traced: jax.stages.Traced | None = None
        self.lowered: jax.stages.Lowered | None = None
        self.trace_seconds: float | None = None
        if self.kind == "plain":
            self.fn, self.args, self.kwargs = _jitted(fn, args, kwargs)
        begin = time.perf_counter()
        if self.kind != "wrapper":
            self.traced = self.fn.trace(*self.args, **self.kwargs)  # type: ignore[attr-defined]
            if not self.traced.jaxpr.jaxpr.outvars and not self.traced.jaxpr.effects:
                raise ValueError(
                    f"measure({name_of(fn)}) got a function that returns no array. Expected at least one: "
                    "the compiler removes all work that reaches no output, and nothing would be timed. "
                    "Fix: return what is computed."
                )
            self.lowered = self.traced.lower()
        elif hasattr(fn, "lower"):
            lowered = fn.lower(*args, **kwargs)
            self.lowered = getattr(lowered, "lowered", lowered)  # equinox wraps it once more
        if self.lowered is not None:
            self.trace_seconds = time.perf_counter() - begin
        self.donates = self.lowered is not None and any(
            info.donated for info in jtu.tree_leaves(self.lowered.args_info)
        )

    def run(self) -> Callable[[], Any]:
        """Prepare one run, with copies of the arguments where it would consume them."""
        args, kwargs = self.args, self.kwargs
        if self.donates:
            args, kwargs = jax.block_until_ready(jtu.tree_map(_copy, (args, kwargs)))
        return lambda: self.fn(*args, **kwargs)


def user_trace(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> jax.stages.Traced:
    """Trace what the user wrote, inside any number of wrappers."""
    while _kind(fn) == "wrapper" and hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    if _kind(fn) != "jitted":
        fn, args, kwargs = _jitted(fn, args, kwargs)
    return fn.trace(*args, **kwargs)  # type: ignore[attr-defined]


def leaf_names(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> list[str]:
    """The traced leaves of a call in the user's names, in the order in which JAX flattens them."""
    fn = unwrapped(fn)
    leaves = named_leaves(fn, args, kwargs)
    leaves += [("fn" + jtu.keystr(path), leaf) for path, leaf in jtu.tree_flatten_with_path(opened(fn))[0]]
    return [name for name, leaf in leaves if eqx.is_array_like(leaf)]


def _kind(fn: Callable[..., Any]) -> Literal["plain", "jitted", "wrapper"]:
    if hasattr(fn, "lower"):
        return "jitted" if hasattr(fn, "trace") else "wrapper"
    return "wrapper" if isinstance(fn, eqx.Module) and hasattr(fn, "__wrapped__") else "plain"


def _jitted(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> tuple[Any, tuple, dict[str, Any]]:
    """Jit a plain function: arrays and numbers, those in `fn` too, are arguments, the rest is static."""
    traced, static = eqx.partition((args, kwargs, opened(fn)), eqx.is_array_like)

    def program(traced: Any) -> Any:
        args, kwargs, fn = eqx.combine(traced, static)
        return eqx.filter(fn(*args, **kwargs), eqx.is_array_like)

    program.__name__ = program.__qualname__ = name_of(fn).rpartition(".")[2]
    return jax.jit(program), (traced,), {}


def _copy(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf
