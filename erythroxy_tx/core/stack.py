"""A stack of transforms as a whole: which there are, what they promise together, and the function inside."""

from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu

from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Contract
from erythroxy_tx.core.contract import weaker
from erythroxy_tx.core.padded import Padded
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.static import declare
from erythroxy_tx.core.static import split
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped


def stack(f: Callable[..., Any]) -> list[Transform]:
    """The transforms around a function, from the outside in.

    **Arguments:**

    - `f`: any callable.

    **Returns:** a list, empty where there is none.

    >>> import erythroxy_tx as tx, jax
    >>> for transform in tx.stack(tx.vram_resident(tx.chunked(jax.lax.map, 4, out="sum")(sum))):
    ...     print(transform.name)
    tx.vram_resident
    tx.chunked
    """
    found = []
    while isinstance(f, Transform):
        found.append(f)
        f = f.fn
    return found


def unwrap(f: Callable[..., Any]) -> Callable[..., Any]:
    """The user's own function inside any number of transforms.

    **Arguments:**

    - `f`: any callable.

    **Returns:** the innermost callable; `f` itself where nothing is around it.

    >>> import erythroxy_tx as tx
    >>> tx.unwrap(tx.vram_resident(len)) is len
    True
    """
    return unwrapped(f)


def contract(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a stack of transforms promises for these arguments, for each output.

    The promise is about the whole stack against `tx.unwrap(f)`, both compiled. Nothing is run.

    **Arguments:**

    - `f`: a decorated function (of a plain one the answer is `Bitwise()`).
    - `args`, `kwargs`: the arguments of a call, or `jax.ShapeDtypeStruct`s for arrays.

    **Returns:** a pytree like the function's result with a contract at each leaf: `Bitwise()`, `Close(rtol)` or
    `AsAccurate(k)`; its attribute `gradients` is the promise about derivatives, where it is another one.

    >>> import erythroxy_tx as tx, jax, jax.numpy as jnp
    >>> @tx.chunked(jax.lax.map, 4, out=("rows", "sum"))
    ... def f(x):
    ...     return x[:, ::-1], x.sum(0)
    >>> tx.contract(f, jnp.ones((8, 3)))
    (Bitwise(), AsAccurate(k=4))
    """
    function = reference(f)
    names = [name for transform in stack(f) for name in transform._static_names()]
    plain_args: Any = jtu.tree_map(_data, (args, kwargs), is_leaf=lambda x: isinstance(x, Padded))
    static, dynamic = split(declare(function, names, *plain_args), name_of(function))

    def plain(*leaves: Any) -> Any:
        args, kwargs = static.merge(leaves)
        return function(*args, **kwargs)

    promise: Any = jtu.tree_map(lambda _: Bitwise(), jax.eval_shape(plain, *dynamic))
    for transform in reversed(stack(f)):
        own = transform._promise(args, kwargs)
        if isinstance(own, Contract):
            own = jtu.tree_map(lambda _, own=own: own, promise)
        promise = jtu.tree_map(weaker, promise, own)
    return promise


def reference(fn: Any) -> Callable[..., Any]:
    """What a stack of transforms is held to: the function inside, as it is called without them."""
    innermost, found = fn, None
    while isinstance(innermost, Transform):
        found = innermost._reference() or found
        innermost = innermost.fn
    return innermost if found is None else found


def _data(x: Any) -> Any:
    return x.data if isinstance(x, Padded) else x
