"""Inputs beside the drawn one: a second one for a batch, and those that rounding cannot tell from it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def companion(leaf: Any) -> Any:
    """Another value of the same shape, dtype and range: entries in reverse order; another key."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf[::-1] if leaf.ndim else jax.random.fold_in(leaf, 1)
    if not np.ndim(leaf):
        return leaf
    turned = leaf[::-1]
    same = np.asarray(turned).tobytes() == np.asarray(leaf).tobytes()
    return leaf.reshape(-1)[::-1].reshape(leaf.shape) if same else turned


def strained(leaves: tuple) -> tuple:
    """Inputs in which every float is eight times as large, and more than 8: what is about to overflow does."""
    with np.errstate(over="ignore", invalid="ignore"):
        return tuple(_strained(leaf) if _is_inexact(leaf) else leaf for leaf in leaves)


def _strained(leaf: Any) -> Any:
    found = np.where(np.abs(leaf) < 1, np.where(np.signbit(np.real(leaf)), -8, 8), np.asarray(leaf) * 8)
    return leaf * 8 if isinstance(leaf, (float, complex)) else found.astype(leaf.dtype)


def _is_inexact(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def nearby(leaves: tuple, wide: tuple, *, ties: bool) -> list[tuple]:
    """Inputs in which every float is one rounding unit larger or smaller in magnitude, each place by itself.

    **Arguments:**

    - `leaves`: the inputs, whose dtypes say what a rounding unit is.
    - `wide`: the same with floats in float64.
    - `ties`: whether zeros stay as they are, which tie; or become a rounding unit of 1, of either sign.
    """
    pairs = list(zip(leaves, wide, strict=True))
    return [
        tuple(_moved(*pair, np.random.default_rng((seed, i)), ties) for i, pair in enumerate(pairs))
        for seed in range(4)
    ]


def _moved(leaf: Any, value: Any, random: np.random.Generator, ties: bool) -> Any:
    kind = jnp.result_type(leaf)
    if not _is_inexact(leaf):
        return value
    found, info = np.array(value), jnp.finfo(kind)
    eps = float(info.eps)
    for part in [found.real, found.imag] if np.iscomplexobj(found) else [found]:
        signs = random.choice([-1.0, 1.0], part.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            part[...] = np.where((part == 0) & (not ties), signs * eps, part * (1 + signs * eps))
    return found
