"""Equations of known numbers, computed while tracing. What numpy computes to the bit as XLA does is left to numpy: no
program is compiled for it. Not here: which equations are (`equations.py`, `likeness.py`).
"""

import warnings
from typing import Any

import jax
import numpy as np

from erythroxy_tx import _compat

_NUMPY: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_KINDS = {"bool", "int32", "int64", "float32", "float64"}
_EXACT = ("ii", "if", "ff", "bi", "bf")  # a float that is made an integer is not the same everywhere


def computed(primitive: Any, ins: list[Any], params: dict[str, Any]) -> list[np.ndarray]:
    """The outputs of an equation of numbers."""
    own = _in_numpy(primitive.name, [np.asarray(x) for x in ins], params)
    if own is not None:
        return [own]
    with jax.transfer_guard("allow"), jax.ensure_compile_time_eval():
        return [np.asarray(x) for x in _compat.bind(primitive, ins, params)]


def _in_numpy(name: str, ins: list[np.ndarray], params: dict[str, Any]) -> np.ndarray | None:
    kinds = [x.dtype.name for x in ins]
    if not _KINDS.issuperset(kinds) or (name in ("add", "sub", "mul", "neg") and "bool" in kinds):
        return None
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in _NUMPY and all(x.shape == ins[0].shape for x in ins):
            return np.asarray(_NUMPY[name](*ins))
        if name == "div" and all(x.dtype.kind == "f" for x in ins):
            return np.asarray(np.divide(*ins))
        if name == "convert_element_type" and ins[0].dtype.kind + np.dtype(params["new_dtype"]).kind in _EXACT:
            return ins[0].astype(params["new_dtype"])
        if name == "select_n" and ins[0].dtype == bool and ins[0].shape == ins[1].shape:
            return np.where(ins[0], ins[2], ins[1])
    return None
