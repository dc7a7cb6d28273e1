"""An array of which the first entries along some axes are there, and how many. Not here: what runs on it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx import _compat
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.errors import LengthError


class Padded(eqx.Module):
    """An array with more place than entries: along `axis` the first `length` are there, what follows is anything.

    A pytree, which `pad_static` takes as it is and gives with `keep_padded=True`: no array is brought to the host
    between two functions, and nothing compiles for another length.

    **Arguments:**

    - `data`: the array, with its place. `length`: how many entries are there, an int or an int32; a tuple of them for
        several axes. `axis`: along which axis, or a tuple of them.

    **Raises:** `LengthError` if more are said to be there than there is place for; `ValueError` for an axis that is
    not there.

    >>> import jax.numpy as jnp, erythroxy_tx as tx
    >>> x = tx.Padded(jnp.arange(8.0), 3)
    >>> x.mask.tolist(), x.trim().tolist()
    ([True, True, True, False, False, False, False, False], [0.0, 1.0, 2.0])
    """

    data: jax.Array
    lengths: tuple[Any, ...]
    axes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, data: Any, length: Any, axis: int | tuple[int, ...] = 0):
        if not hasattr(data, "shape"):
            raise TypeError(f"tx.Padded got data: {type(data).__name__}. Expected an array. Fix: np.asarray of it.")
        axes, lengths = (axis, length) if isinstance(axis, tuple) else ((axis,), (length,))
        if not isinstance(lengths, tuple) or len(lengths) != len(axes):
            raise ValueError(
                f"tx.Padded got length={length!r} for axis={axis!r}. Expected a tuple of one for each axis."
            )
        self.data = data
        self.axes = tuple(a % max(data.ndim, 1) for a in axes)
        self.lengths = tuple(_length(data, a, size) for a, size in zip(axes, lengths, strict=True))

    @classmethod
    def made(cls, data: Any, lengths: tuple[Any, ...], axes: tuple[int, ...]) -> "Padded":
        """One whose lengths are known to be good."""
        found = object.__new__(cls)
        for name, value in (("data", data), ("lengths", lengths), ("axes", axes)):
            object.__setattr__(found, name, value)
        return found

    def check_single(self, asked: str) -> None:
        """Refuse a batch of padded arrays, which has as many lengths.

        **Raises:** `ValueError`.
        """
        if batch := [length.shape for length in self.lengths if np.ndim(length)]:
            raise ValueError(
                f"tx.Padded got data: {shape_of(self.data)} and lengths of shape {batch[0]}: a batch of them. Expected "
                f"one, for {asked}. Fix: jax.vmap, in which each is one."
            )

    @property
    def length(self) -> Any:
        """How many entries are there, along the one axis that it is about."""
        if len(self.lengths) != 1:
            raise ValueError(f"tx.Padded.length got {len(self.lengths)} axes. Expected one. Fix: .lengths.")
        return self.lengths[0]

    @property
    def mask(self) -> jax.Array:
        """Which entries are there: `bool[place]`, or of several axes in order."""
        self.check_single("mask")
        sizes = [self.data.shape[axis] for axis in self.axes]
        found: Any = jnp.ones(sizes, bool)
        for i, (size, length) in enumerate(zip(sizes, self.lengths, strict=True)):
            found &= jnp.arange(size).reshape([-1 if i == j else 1 for j in range(len(sizes))]) < length
        return found

    @property
    def everywhere(self) -> jax.Array:
        """The mask with the number of axes of the data, which it broadcasts against."""
        order = np.argsort(self.axes)
        shape = [self.data.shape[i] if i in self.axes else 1 for i in range(self.data.ndim)]
        return self.mask.transpose(order).reshape(shape)

    def trim(self) -> jax.Array:
        """What is there and nothing else, by way of the host: no program is compiled for its length.

        **Raises:** `ValueError` inside of a trace, where the length is not known.
        """
        self.check_single("trim")
        if any(isinstance(length, jax.core.Tracer) for length in self.lengths):
            raise ValueError(
                f"tx.Padded.trim got data: {shape_of(self.data)} and a length that is traced. Expected a known "
                "length. Fix: trim outside of the traced function; inside, use .mask."
            )
        lengths = [int(n) for n in jax.device_get(self.lengths)]
        return trimmed(self.data, dict(zip(self.axes, lengths, strict=True)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """What is there, for `np.asarray`."""
        return np.asarray(self.trim(), dtype)


def trimmed(data: Any, sizes: dict[int, int]) -> Any:
    """The first entries of an array along some axes. One that is known goes by way of the host."""
    if all(data.shape[axis] == size for axis, size in sizes.items()):
        return data
    cut = tuple(slice(0, sizes.get(axis)) for axis in range(data.ndim))
    if isinstance(data, jax.core.Tracer):
        return data[cut]
    if jnp.issubdtype(data.dtype, jax.dtypes.extended):
        keys = jax.random.key_data(data)
        return jax.random.wrap_key_data(trimmed(keys, sizes), impl=jax.random.key_impl(data))
    if not data.is_fully_addressable:
        raise ValueError(
            f"tx.Padded.trim got data: {shape_of(data)}, of which other processes have a part. Expected all of it "
            "here. Fix: .mask, or what is in data.addressable_shards."
        )
    with jax.transfer_guard("allow"):
        found = jax.device_put(np.asarray(data)[cut], min(data.devices(), key=lambda device: device.id))
    return _compat.weakly_typed(found) if data.weak_type else found


def as_padded(found: Any, sizes: list[list[Any]]) -> Any:
    """Arrays of which some sizes are lengths, those that are no ints, as `Padded`."""
    leaves, treedef = jtu.tree_flatten(found)
    made = []
    for x, size in zip(leaves, sizes, strict=True):
        axes = tuple(axis for axis, n in enumerate(size) if not isinstance(n, int))
        made.append(Padded.made(x, tuple(jnp.asarray(size[a], jnp.int32) for a in axes), axes) if axes else x)
    return jtu.tree_unflatten(treedef, made)


def _length(data: Any, axis: int, length: Any) -> Any:
    shape, told = data.shape, shape_of(data)
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"tx.Padded got data: {told} and axis={axis}. Expected an axis of the data.")
    if isinstance(length, bool) or not np.issubdtype(getattr(length, "dtype", type(length)), np.integer):
        raise TypeError(f"tx.Padded got length={length!r}. Expected an integer, of entries along axis {axis}.")
    if np.ndim(length):
        raise ValueError(
            f"tx.Padded got data: {told} and a length of shape {length.shape}. Expected one number. Fix: of a batch, "
            "jax.vmap(lambda x, n: f(tx.Padded(x, n)))."
        )
    if isinstance(length, jax.core.Tracer):
        wrong = (length < 0) | (length > shape[axis])
        return eqx.error_if(length, wrong, f"tx.Padded got data: {told} and a length below 0 or above {shape[axis]}")
    if not 0 <= int(length) <= shape[axis]:
        raise LengthError(
            f"tx.Padded got data: {told} and length={int(length)} along axis {axis}. Expected 0 to {shape[axis]}."
        )
    return length if isinstance(length, jax.Array) else np.int32(length)
