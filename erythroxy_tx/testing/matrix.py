"""One table over every transform of the library: what each must survive, in every way of calling and for every dtype,
and what it must refuse. Not here: the ways (`ways.py`), nor how a result is judged (`judge.py`).

A transform of your own is one more `Row`, and `check` holds it to the same.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from erythroxy_tx.core.cache import clear
from erythroxy_tx.core.stack import contract
from erythroxy_tx.errors import IdentityError
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.testing.judge import Judge
from erythroxy_tx.testing.recurrences import RECURRENCES
from erythroxy_tx.testing.ways import WAYS
from erythroxy_tx.transforms.assert_relocation import assert_relocation
from erythroxy_tx.transforms.bf16_carry_scan import bf16_carry_scan
from erythroxy_tx.transforms.checkpointed_scan import checkpointed_scan
from erythroxy_tx.transforms.chunked import chunked
from erythroxy_tx.transforms.hoist_invariants import hoist_invariants
from erythroxy_tx.transforms.host_flat import host_flat
from erythroxy_tx.transforms.no_disk_io import no_disk_io
from erythroxy_tx.transforms.no_host_sync import no_host_sync
from erythroxy_tx.transforms.no_recompile import no_recompile
from erythroxy_tx.transforms.pad_static import pad_static
from erythroxy_tx.transforms.precompute import precompute
from erythroxy_tx.transforms.vram_resident import vram_resident

Fn = Callable[..., Any]

DTYPES = ("float32", "float16", "bfloat16", "complex64", "int32", "uint8", "bool")
_IN_A_TRACE = ("jit", "vmap", "grad", "scan", "remat", "jvp")


def scaled(x: Any, w: Any) -> Any:
    """Rows, and their sums: the function of the matrix, of every dtype."""
    h = x * w
    return {"moved": x[:, ::-1], "scaled": h, "sums": (h.sum(0, dtype=_sum_dtype(h)), (x == w).sum(0))}


def scaled_in_numpy(x: Any, w: Any) -> Any:
    """The same in numpy."""
    h = x * w
    return {"moved": x[:, ::-1], "scaled": h, "sums": (h.sum(0, dtype=_sum_dtype(h)), (x == w).sum(0, dtype=np.int32))}


def _sum_dtype(h: Any) -> Any:
    return jnp.promote_types(h.dtype, jnp.uint8)  # its own, of bools a number


_DERIVED: Any = {"dtypes": ("float32",), "ways": ("jit", "vmap", "grad", "jvp")}
_OUT = {"moved": "rows", "scaled": "rows", "sums": "sum"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One transform.

    - `name`: its public name.
    - `decorate`: puts it on a function of rows `x` and of shared values `w`.
    - `keywords`: likewise for `w` by keyword; by default `decorate`.
    - `refused`: the ways in which it cannot be called, with the error or the warning that says so.
    - `note`: what tells this row from others of the same transform.
    - `fn`, `dtypes`, `ways`: the function that it is put on, for which numbers, and how it is called.
    """

    name: str
    decorate: Callable[[Fn], Fn]
    keywords: Callable[[Fn], Fn] | None = None
    refused: Mapping[str, type[Exception]] = dataclasses.field(default_factory=dict)
    note: str = ""
    fn: Fn = scaled
    dtypes: tuple[str, ...] = DTYPES
    ways: tuple[str, ...] = tuple(WAYS)

    def __str__(self) -> str:
        return self.name + f" {self.note}" * bool(self.note)


# What calls the function as it is, and looks at no number.
_GUARD: dict[str, Any] = {
    "refused": dict.fromkeys(_IN_A_TRACE, TransformOrderError),
    "dtypes": ("float32", "int32"),
}

ROWS = (
    Row(
        "chunked",
        chunked(lax.map, size=3, in_axes=(0, None), out=_OUT),
        keywords=chunked(lax.map, size=3, out=_OUT),
        refused={"jvp": TypeError},
    ),
    Row(
        "chunked",
        chunked(lax.scan, 2, in_axes=(0, None), out=_OUT, remat=False),
        keywords=chunked(lax.map, 2, out=_OUT, remat=False),
        note="without remat",
    ),
    Row(
        "chunked", chunked(lax.map, 1, in_axes=(0, None), out=_OUT), chunked(lax.map, 1, out=_OUT), note="in one chunk"
    ),
    Row(
        "chunked",
        chunked(lax.map, budget="1MiB", in_axes=(0, None), out=_OUT),
        keywords=chunked(lax.map, budget="1MiB", out=_OUT),
        note="by budget",
    ),
    Row(
        "chunked",
        chunked(lax.map, size=3, in_axes=(0, None)),
        keywords=chunked(lax.map, size=3),
        refused={"jvp": TypeError},
        note="with nothing declared",
    ),
    Row(
        "pad_static",
        pad_static(9, in_axes=(0, None)),
        keywords=pad_static(9),
        refused={"jvp": TypeError},
    ),
    Row("checkpointed_scan", checkpointed_scan),
    Row("bf16_carry_scan", bf16_carry_scan),
    Row("hoist_invariants", hoist_invariants),
    Row("precompute", precompute("w"), refused=dict.fromkeys(_IN_A_TRACE, TransformOrderError)),
    Row("no_recompile", no_recompile, refused=dict.fromkeys(_IN_A_TRACE, TransformOrderError)),
    Row("no_host_sync", no_host_sync, **_GUARD),
    Row("no_disk_io", no_disk_io, **_GUARD),
    Row("host_flat", host_flat("1GiB"), **_GUARD),
    Row("vram_resident", vram_resident, refused=dict.fromkeys(_IN_A_TRACE, TransformOrderError)),
    Row(
        "assert_relocation",
        assert_relocation(scaled_in_numpy, rtol=2e-2),
        refused=dict.fromkeys(_IN_A_TRACE, UserWarning),
    ),
    *(
        Row(transform.__name__, transform, note=f"on {name}", fn=fn, **_DERIVED)
        for transform in (checkpointed_scan, bf16_carry_scan, hoist_invariants)
        for name, fn in RECURRENCES.items()
    ),
    *(
        Row(
            "checkpointed_scan",
            lambda f: checkpointed_scan(bf16_carry_scan(f)),
            note=f"in bf16, on {name}",
            fn=fn,
            dtypes=("float32",),
        )
        for name, fn in RECURRENCES.items()
    ),
)


def cases(rows: tuple[Row, ...] = ROWS) -> list[Any]:
    """Every row in every way for every dtype, as parameters of pytest; derivatives of floats and complex numbers."""
    return [
        pytest.param(row, way, dtype, id=f"{row}-{way}-{dtype}")
        for row in rows
        for way in row.ways
        for dtype in row.dtypes
        if way not in ("grad", "jvp") or jnp.issubdtype(jnp.dtype(dtype), jnp.inexact)
    ]


def arguments(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Seven rows of two, and what scales them."""
    x: Any = np.arange(14).reshape(7, 2) % 5 - 2
    w: Any = np.array([1, 3])
    kind = jnp.dtype(dtype)
    if jnp.issubdtype(kind, jnp.inexact):
        x, w = x / 4, w / 2
    if jnp.issubdtype(kind, jnp.complexfloating):
        x, w = x + 0.5j * x[::-1], w * (1 - 0.25j)
    with np.errstate(invalid="ignore"):
        return x.astype(kind), w.astype(kind)


_PROGRAMS: dict[Any, Any] = {}  # of the reference, which is the same for every row


def check(row: Row, way: str, dtype: str) -> None:
    """Hold one row to what it promises, or to its refusal.

    **Raises:** `IdentityError` where the result is another one; what the call raises where it should not; pytest's
    failure where it should have raised.
    """
    args, decorated = arguments(dtype), row.decorate(row.fn)
    promise = contract(decorated, *args)
    if way == "kwargs" and row.keywords is not None:
        decorated = row.keywords(row.fn)
    judge = Judge(row.fn, decorated, promise, _PROGRAMS)
    if way in row.refused:
        _check_refusal(row, way, judge, args)
    elif faults := judge.findings(way, args, gradients=True).faults:
        raise IdentityError(f"{row} under {way} for {dtype}:\n  " + "\n  ".join(faults))


def _check_refusal(row: Row, way: str, judge: Judge, args: tuple) -> None:
    """Call the decorated function itself inside a trace."""
    example, kind = judge.example(args), row.refused[way]
    call = WAYS[way].build(judge.candidate, example.first)
    inputs = example.inputs(WAYS[way])
    expected = pytest.warns(kind) if issubclass(kind, Warning) else pytest.raises(kind)
    clear()  # what is told once is told again
    with expected:
        jax.jit(call)(*inputs)
