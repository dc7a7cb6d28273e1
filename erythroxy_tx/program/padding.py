"""The program of a call for every length up to the most. Not here: how it is called (`transforms/pad_static.py`)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program.derivative import vjp_of
from erythroxy_tx.program.likeness import check_alike
from erythroxy_tx.program.masked import Masked
from erythroxy_tx.program.pad_call import PadCall
from erythroxy_tx.program.regimes import Numbers
from erythroxy_tx.program.regimes import regimes
from erythroxy_tx.program.symbol import Symbol
from erythroxy_tx.program.trace import Trace
from erythroxy_tx.program.trace import hoisted
from erythroxy_tx.program.trace import trace


def masked_call(call: PadCall) -> tuple[Masked, list[Any]]:
    """The program of a call, and the tracers that its function captured.

    **Raises:** what the function raises for the most rows; `RowMixingError` if it has no exact form with masks.
    """
    source = _Source(call)
    known = tuple(call.lengths) if all(isinstance(n, int) for n in call.lengths) else None
    try:
        found = regimes(source, call.most, known)
    except jax.errors.ConcretizationTypeError as error:
        error.add_note(
            f"{call.label}: numbers and bools among the arguments are traced. Fix: name them in static_argnames=; of "
            "an Equinox module, pass the arrays of eqx.partition(model, eqx.is_array) and close over the rest."
        )
        raise
    return Masked(found, call.label, source.results[0]), source.captured


def _kind_of(result: Any) -> Any:
    leaves, treedef = jtu.tree_flatten(result)
    return treedef, tuple((str(leaf.dtype), leaf.weak_type) for leaf in leaves)


def _ask_all(found: Trace, label: str) -> None:
    """Let what is opened late, and the derivative, ask what they ask of the number of rows."""
    outs: list[Any] = [v.aval for v in found.closed.jaxpr.outvars]
    wanted, live = ([i for i, t in enumerate(types) if _is_smooth(t)] for types in (found.types, outs))
    opened = [found.flat]
    if wanted and live:
        try:
            opened.append(vjp_of(found, wanted, live, label).flat)
        except Exception:  # noqa: BLE001  # whatever a backward rule raises; it does again where a gradient is wanted
            return


def _is_smooth(kind: Any) -> bool:
    return jnp.issubdtype(kind.dtype, jnp.inexact)


@dataclasses.dataclass
class _Source:
    """The programs of a call, whose first arguments are its lengths."""

    call: PadCall

    def __post_init__(self) -> None:
        self.label, self.captured = self.call.label, list[Any]()
        self._count = [jax.ShapeDtypeStruct((), jnp.int32)] * len(self.call.most)
        self.results: list[Any] = []

    def _flat(self, *leaves: Any) -> list[Any]:
        return self.call.flat_whole(*leaves[len(self._count) :])

    def unknown(self, rows: Numbers) -> Trace:
        symbol = self.symbol = Symbol(*self.call.limits.shown)
        found, captured = trace(
            self._flat, lambda s: [*self._count, *self.call.types(s.dims)], rows, lambda _: symbol, self.label
        )
        if symbol.only is not None:
            raise RowMixingError(
                f"{self.label} takes the number of rows as text, or looks it up in a dict or a set. Expected a "
                "function that is the same for any number of rows. Fix: no print or f-string of a shape; a mask or "
                "jnp.where in place of a dict."
            )
        check_alike(found, self._known(rows), self.label)
        found = self._with(found, captured)
        _ask_all(found, self.label)
        return found

    def known(self, rows: Numbers) -> Trace:
        return self._with(*hoisted(self._known(rows), Symbol(*self.call.limits.shown), rows))

    def _known(self, rows: Numbers) -> Any:
        closed, result = jax.make_jaxpr(
            lambda *leaves: self.call.outputs(*leaves[len(self._count) :]), return_shape=True
        )(*self._count, *map(struct_of, self.call.types(rows)))
        self.results.append(result)
        first, structure = (_kind_of(each) for each in (self.results[0], result))
        if structure != first:
            raise RowMixingError(
                f"{self.label} gives {structure} for {rows} rows and {first} for more. Expected one "
                "structure, dtype and weak type for any number of rows."
            )
        return closed

    def _with(self, found: Trace, captured: list[Any]) -> Trace:
        """Captured tracers are the same for every number of rows, or an error."""
        if not self.captured:
            self.captured = captured
        if [id(x) for x in captured] != [id(x) for x in self.captured]:
            raise RowMixingError(
                f"{self.label} captures other values for {found.rows} rows than for more. Expected the same. Fix: pass "
                "them as arguments."
            )
        return found
