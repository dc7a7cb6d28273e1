"""`per_step_key` against `fold_in`, for each kind of key and of step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from erythroxy_tx.runtime.keys import per_step_key

KEYS = [jax.random.key(3), jax.random.PRNGKey(3), jax.random.key(3, impl="rbg")]


def data(key: jax.Array) -> list:
    return np.asarray(jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key).tolist()


@pytest.mark.parametrize("key", KEYS, ids=["typed", "raw", "rbg"])
def test_the_key_of_a_step_does_not_depend_on_its_type(key: jax.Array) -> None:
    expected = jax.random.fold_in(key, 7)
    kinds = [7, np.int8(7), np.uint64(7), np.array(7), jnp.int32(7), jnp.uint8(7), jnp.int8(7)]
    found = [per_step_key(key, step) for step in kinds] + [jax.jit(per_step_key)(key, 7)]
    assert all(each.dtype == key.dtype and each.shape == key.shape for each in found)
    assert [data(each) for each in found] == [data(expected)] * len(found)


def test_keys_differ_up_to_the_last_step() -> None:
    steps = [0, 1, 2**31 - 1, 2**31, 2**32 - 1]
    keys = [data(per_step_key(KEYS[0], step)) for step in steps]
    assert len(set(map(tuple, keys))) == len(steps)
    assert keys[-1] == data(per_step_key(KEYS[0], jnp.uint32(2**32 - 1)))


@pytest.mark.parametrize("key", KEYS[:2], ids=["typed", "raw"])
def test_in_scan_and_vmap(key: jax.Array) -> None:
    expected = [data(per_step_key(key, step)) for step in range(4)]
    scanned = jax.lax.scan(lambda step, _: (step + 1, per_step_key(key, step)), 0, None, length=4)[1]
    assert data(scanned) == data(jax.vmap(per_step_key, (None, 0))(key, jnp.arange(4))) == expected


BATCH = jax.random.split(KEYS[0])


@pytest.mark.parametrize(
    ("key", "step", "error", "told"),
    [
        (KEYS[0], -1, ValueError, "step=-1. Expected 0 <= step <= 4294967295"),
        (KEYS[0], 2**32, ValueError, "step=4294967296"),
        (KEYS[0], np.int64(-1), ValueError, "step=-1"),
        (KEYS[0], 1.0, TypeError, "step: float. Expected one integer"),
        (KEYS[0], True, TypeError, "step: bool"),
        (KEYS[0], np.bool_(1), TypeError, r"step: bool\[\]"),
        (KEYS[0], jnp.array(True), TypeError, r"step: bool\[\]"),  # noqa: FBT003
        (KEYS[0], jnp.float32(1), TypeError, r"step: f32\[\]"),
        (KEYS[0], np.arange(3), TypeError, r"step: i64\[3\]. .*jax.vmap"),
        (KEYS[0], jnp.arange(3), TypeError, r"step: i32\[3\]. .*jax.vmap"),
        (KEYS[0], "1", TypeError, "step: str"),
        (BATCH, 1, TypeError, r"key: key<fry>\[2\]. Expected one key.*jax.vmap"),
        (jax.random.split(KEYS[1]), 1, TypeError, r"key: u32\[2,2\]. Expected one key"),
        (0, 1, TypeError, r"key: int. Expected a random key. Fix: jax.random.key"),
        (jnp.ones(2), 1, TypeError, r"key: f32\[2\]"),
    ],
)
def test_refusals(key: Any, step: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=rf"^tx\.per_step_key got {told}"):
        per_step_key(key, step)
