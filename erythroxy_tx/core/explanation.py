"""What a stack of transforms will do with some arguments, in words and bytes. Nothing is run.

Not here: what a transform says of itself (its `_told`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu

from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.stack import contract
from erythroxy_tx.core.stack import stack


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The lines of an explanation; it prints as text."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__


def explain(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What a decorated function does with these arguments: its stack, contract, passes, chunk, and bytes.

    **Arguments:**

    - `f`: a decorated function. `args`, `kwargs`: the arguments of a call, or `jax.ShapeDtypeStruct`s for arrays.

    **Returns:** an `Explanation`: it prints as text, and `.lines` holds the lines. Nothing is run; the program is
    compiled, to tell its bytes.

    **Raises:** what a call with these arguments would raise before it runs.

    >>> import jax, jax.numpy as jnp, erythroxy_tx as tx
    >>> @tx.chunked(jax.lax.map, size=100)
    ... def standardise(x):
    ...     return (x - x.mean(0)) / x.std(0)
    >>> print(tx.explain(standardise, jnp.ones((1000, 8))))  # doctest: +ELLIPSIS
    standardise, in tx.chunked
    tx.chunked: 1000 rows in 10 chunks of 100
        2 passes over the rows; computes 1.2 times what one-shot does
        ...
    """
    transforms = stack(f)
    lines = [
        f"{name_of(f)}, in {' · '.join(t.name for t in transforms)}" if transforms else f"{name_of(f)}, undecorated"
    ]
    for transform in transforms:
        first, *more = transform._told(args, kwargs) or [str(transform)]
        lines += [f"{transform.name}: {first}", *(f"    {line}" for line in more)]
    lines += _contracts(f, args, kwargs)
    outermost = next((t for t in transforms if t.compiles), None)
    if outermost is not None:
        lines.append(
            f"compiled: {ProgramBytes.of(outermost.lower(*args, **kwargs).compile())}, by XLA's buffer assignment"
        )
    return Explanation(tuple(lines))


def _contracts(f: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> list[str]:
    promises = jtu.tree_flatten_with_path(contract(f, *args, **kwargs))[0]
    return [f"result{jtu.keystr(path)}: {promise}" for path, promise in promises]
