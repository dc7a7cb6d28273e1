"""What a function and the transforms around it will do with some arguments, in words and bytes. Nothing is run.

Not here: what a transform says of itself (its `_told`), nor how scans are looked at (`program/scans/`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.padded import Padded
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.stack import contract
from erythroxy_tx.core.stack import reference
from erythroxy_tx.core.stack import stack
from erythroxy_tx.core.static import declare
from erythroxy_tx.core.static import split
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.program.scans.copies import copied
from erythroxy_tx.program.scans.copies import has_big_carries
from erythroxy_tx.program.scans.flow import Flow
from erythroxy_tx.program.scans.looped import Looped
from erythroxy_tx.program.scans.outputs import stacks


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The lines of an explanation; it prints as text."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__


def explain(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What a function does with these arguments: its stack, contract, passes, chunk, bytes, and what its scans keep.

    **Arguments:**

    - `f`: a decorated function, or any other. `args`, `kwargs`: the arguments of a call, or `jax.ShapeDtypeStruct`s for
        arrays.

    **Returns:** an `Explanation`: it prints as text, and `.lines` holds the lines. Nothing is run; the program is
    compiled, to tell its bytes, or where a scan carries 1 MiB or more.

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
    for outer, transform in zip([None, *transforms], transforms, strict=False):
        if isinstance(transform, Looped) and isinstance(outer, Looped):
            lines.append(f"{transform.name}: acts on the same scans together with it")
            continue
        first, *more = transform._told(args, kwargs) or [str(transform)]
        lines += [f"{transform.name}: {first}", *(f"    {line}" for line in more)]
    try:
        traced = _trace(f, transforms, args, kwargs)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        if transforms:
            raise
        reason = f"it cannot be traced with these arguments ({type(error).__name__})"
        return Explanation((*lines, f"neither its scans nor its contract are told: {reason}"))
    promises = contract(f, *args, **kwargs) if transforms else jtu.tree_map(lambda _: Bitwise(), traced.out_info)
    outermost = next((t for t in transforms if t.compiles), None)
    compiled = outermost and outermost.lower(*args, **kwargs).compile()
    results = [f"result{jtu.keystr(path)}" for path, _ in jtu.tree_flatten_with_path(traced.out_info)[0]]
    flow = Flow(traced.jaxpr)
    of_scans = stacks(flow, results)
    lines += [line if compiled is None or line[0] == " " else f"undecorated: {line}" for line in of_scans]
    if has_big_carries(flow):
        lines += copied(flow, (compiled or traced.lower().compile()).as_text() or "")
    lines += [f"result{jtu.keystr(path)}: {promise}" for path, promise in jtu.tree_flatten_with_path(promises)[0]]
    if compiled is not None:
        lines.append(f"compiled: {ProgramBytes.of(compiled)}, by XLA's buffer assignment")
    return Explanation(tuple(lines))


def _trace(f: Callable[..., Any], transforms: list[Transform], args: tuple, kwargs: dict[str, Any]) -> Any:
    """The user's function, traced as its transforms would; without any Python's numbers are constants, as in a call."""
    if not transforms:
        leaves, tree = jtu.tree_flatten((args, kwargs))
        arrays = {
            i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)
        }

        def plain(arrays: dict[int, Any]) -> Any:
            args, kwargs = jtu.tree_unflatten(tree, [arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
            return f(*args, **kwargs)

        return jax.jit(plain).trace(arrays)
    function = reference(f)
    names = [name for transform in transforms for name in transform._static_names()]
    bare: Any = jtu.tree_map(
        lambda x: x.data if isinstance(x, Padded) else x, (args, kwargs), is_leaf=lambda x: isinstance(x, Padded)
    )
    static, dynamic = split(declare(function, names, *bare), name_of(function))

    def flat(*leaves: Any) -> Any:
        args, kwargs = static.merge(leaves)
        return function(*args, **kwargs)

    return jax.jit(flat).trace(*dynamic)
