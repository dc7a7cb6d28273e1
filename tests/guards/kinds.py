"""Every way of reading a device array, with how many reads it is and what it is called."""

import copy
import logging
import pickle
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Way(NamedTuple):
    """What is done with a device scalar that the host has not read, and with a vector of four of them."""

    do: Callable[[Any, Any], Any]
    kind: str = ""
    reads: int = 1


def twice(v: Any, _: Any) -> None:
    _ = f"{v:.3f}", float(v), np.asarray(v), v.item(), bool(v)


def branch(v: Any, _: Any) -> int:
    return 1 if v > 0 else 2


WAYS = {
    "float": Way(lambda v, _: float(v), "float"),
    "int": Way(lambda v, _: int(v), "int"),
    "complex": Way(lambda v, _: complex(v), "complex"),
    "if": Way(branch, "bool"),
    "max": Way(lambda v, _: max(v, v + 1), "bool"),
    "index of a list": Way(lambda v, _: [1, 2, 3][v.astype(int) % 3], "index"),
    "slice": Way(lambda v, x: x[: v.astype(int) % 3], "index"),
    "f-string": Way(lambda v, _: f"{v:.3f}", "f-string"),
    "print": Way(lambda v, _: repr(v), "print"),
    "%": Way(lambda v, _: "%.2f, %s" % (v, v), "float"),  # noqa: UP031  # as people write it
    "log": Way(lambda v, _: logging.getLogger("quiet").critical("%s", v), "print"),
    "item": Way(lambda v, _: v.item(), ".item()"),
    "tolist": Way(lambda _, x: (x * 2).tolist(), ".tolist()"),
    "tobytes": Way(lambda v, _: v.tobytes(), ".tobytes()"),
    "asarray": Way(lambda v, _: np.asarray(v), "np.asarray"),
    "array": Way(lambda v, _: np.array(v), "np.array"),
    "ufunc": Way(lambda v, _: np.exp(v), "np.exp"),
    "numpy function": Way(lambda v, _: np.allclose(v, v), "np.allclose"),
    "into numpy": Way(lambda v, _: np.zeros(2).__setitem__(0, v), "float"),
    "from_dlpack": Way(lambda v, _: np.from_dlpack(v), "np.from_dlpack"),
    "device_get": Way(lambda v, _: jax.device_get(v), "device_get"),
    "device_get of many": Way(lambda v, x: jax.device_get({"a": v, "b": [x * 2, v + 1]}), "device_get"),
    "two device_gets": Way(lambda v, x: (jax.device_get([v, x * 2]), jax.device_get([v, x * 3])), "device_get", 2),
    "pickle": Way(lambda v, _: pickle.dumps(v), "pickle"),
    "mask": Way(lambda v, x: x[x * v > 0], "mask"),
    "nonzero": Way(lambda v, x: jnp.nonzero(x * v), "jnp.nonzero"),
    "tree of floats": Way(lambda v, _: jax.tree.map(float, {"a": v}), "float"),
    "captured": Way(lambda v, _: jax.jit(lambda: jnp.sin(v))(), "constant of a jit"),
    "debug print": Way(lambda v, _: jax.debug.print("{}", v), "jax.debug.print"),
    "twice": Way(twice, "f-string"),
    "each of two": Way(lambda v, _: [float(w) for w in (v, v + 1)], "float", 2),
    # and what reads nothing
    "block": Way(lambda v, _: jax.block_until_ready(v), reads=0),
    "compare": Way(lambda v, _: v == 1, reads=0),
    "iterate": Way(lambda _, x: list(x * 2), reads=0),
    "round": Way(lambda v, _: round(v, 2), reads=0),
    "copy": Way(lambda v, _: copy.deepcopy(v), reads=0),
    "copy to the host": Way(lambda v, _: v.copy_to_host_async(), reads=0),
    "to a device": Way(lambda v, _: jax.device_put(v, jax.devices()[1]), reads=0),
    "numpy operand": Way(lambda _, x: np.ones(4, np.float32) * x, reads=0),
    "np.sum": Way(lambda _, x: np.sum(x), reads=0),
    "shape": Way(lambda _, x: (len(x), x.nbytes, x.dtype, x.sharding), reads=0),
    "callback": Way(lambda v, _: jax.pure_callback(np.asarray, v, v), reads=0),
    "sum": Way(lambda v, _: sum([v, v]), reads=0),
}


def fresh() -> tuple[Any, Any]:
    """A scalar and a vector that the host has not read."""
    return jnp.square(jnp.float32(1.5)), jnp.arange(4, dtype=jnp.float32)
