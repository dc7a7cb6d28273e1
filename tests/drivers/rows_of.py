"""What tests of drivers begin with, a source as users write one, and how near a result has to be."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def data(n: int, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Rows of some columns, and a target for each."""
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, columns)).astype(np.float32), rng.normal(size=n).astype(np.float32)


def close(got: Any, want: Any, rtol: float = 1e-4) -> None:
    """Shapes and dtypes are the same, and numbers as near as those of another order of adding up."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        near = 1e-2 if a.dtype == jnp.bfloat16 else rtol
        found, right = (np.asarray(x, np.float64) for x in (a, b))
        np.testing.assert_allclose(found, right, rtol=near, atol=near / 5 * np.abs(right).max(initial=1e-6))


class Rows:
    """What a user writes around zarr, HDF5 or a data set of another library."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.array[start:stop]
