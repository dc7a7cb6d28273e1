"""`per_step_key`: the random key of a step, from the key of the run. Not here: what makes batches with it
(`generate.py`).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from erythroxy_tx.core.signature import shape_of

MOST = 2**32 - 1  # what a key folds in


def per_step_key(key: jax.Array, step: Any) -> jax.Array:
    """The key of one step of a run, the same whenever and wherever that step is made again::

        per_step_key(key, step) = jax.random.fold_in(key, uint32(step))

    A function of the two alone: a run that starts again at step 1000 draws what it would have drawn, without the keys
    before it, which a chain of `jax.random.split` needs. Works in `jit`, `scan` and `vmap`.

    **Arguments:**

    - `key`: one key, `jax.random.key(0)` or the raw `jax.random.PRNGKey(0)`. Of a batch of keys: `jax.vmap`.
    - `step`: an integer from 0 to 2**32 - 1, of Python, of numpy or on the device. The key does not depend on its type.
        The value of one on the device is not looked at, which would be a sync: it is taken modulo 2**32.

    **Returns:** a key like `key`.

    **Raises:** `TypeError` for a step that is no single integer, or a key that is no single key; `ValueError` for a
    step that is out of range.

    >>> import jax, numpy as np, erythroxy_tx as tx
    >>> key = jax.random.key(0)
    >>> bool(tx.per_step_key(key, 7) == tx.per_step_key(key, np.int8(7)))
    True
    """
    check_key("tx.per_step_key", key)
    if not isinstance(step, jax.Array):
        step = np.uint32(checked_step("tx.per_step_key", "step", step))
    elif step.shape or not jnp.issubdtype(step.dtype, jnp.integer):
        raise _no_step("tx.per_step_key", "step", step)
    return jax.random.fold_in(key, step)


def checked_step(call: str, name: str, step: Any, most: int = MOST) -> int:
    """A step that is known on the host, as an int."""
    if isinstance(step, np.ndarray) and not step.shape:
        step = step[()]
    if isinstance(step, bool) or not isinstance(step, int | np.integer):
        raise _no_step(call, name, step)
    if not 0 <= step <= most:
        raise ValueError(f"{call} got {name}={step}. Expected 0 <= {name} <= {most}, which 32 bits count.")
    return int(step)


def check_key(call: str, key: Any) -> None:
    """Refuse what is not one key."""
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = not typed and getattr(key, "dtype", None) == np.uint32
    if not (typed or raw):
        raise TypeError(f"{call} got key: {shape_of(key)}. Expected a random key. Fix: jax.random.key(seed).")
    if len(key.shape) != raw:
        raise TypeError(
            f"{call} got key: {shape_of(key)}. Expected one key, not an array of them. Fix: jax.vmap over the keys."
        )


def _no_step(call: str, name: str, step: Any) -> TypeError:
    return TypeError(
        f"{call} got {name}: {shape_of(step)}. Expected one integer. Fix: int({name}) of a whole number; jax.vmap over "
        "an array of them."
    )
