"""What differs between the devices of a mesh inside of `jax.shard_map`, and the store that processes share."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax._src import distributed as _distributed


def _varying(x: Any) -> frozenset[Any]:
    """The axes along which a value differs between devices: 0.10.2, 0.12.0, no public name."""
    kind: Any = jax.typeof(x)
    found: frozenset[Any] = getattr(getattr(kind, "mat", None), "varying", frozenset())
    return found


def varied(values: Sequence[Any], like: Sequence[Any] = ()) -> list[Any]:
    """Values as if each differed wherever any of them does, or of `like`: equations and loops want one kind."""
    axes = [_varying(x) for x in values]
    joined = frozenset[Any]().union(*axes, *map(_varying, like))
    if not joined:
        return list(values)
    return [
        lax.pcast(x, tuple(sorted(joined - own)), to="varying") if joined - own else x
        for x, own in zip(values, axes, strict=True)
    ]


def store_of_processes() -> Any:
    """The strings that all processes of `jax.distributed` see, with `key_value_set` and `blocking_key_value_get`; None
    where there is one process. 0.10.2, 0.12.0.
    """
    return _distributed.global_state.client if jax.process_count() > 1 else None
