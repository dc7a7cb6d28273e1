"""Equations that slide a window along rows: convolutions and pooling. A chunk needs a few rows beside its own."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import everything
from erythroxy_tx.program.blocks import spread
from erythroxy_tx.program.blocks import whole
from erythroxy_tx.program.blocks import within
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.folds import ADD
from erythroxy_tx.program.folds import wide
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Folding
from erythroxy_tx.program.rules.rule import Kind
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import bound
from erythroxy_tx.program.rules.rule import only


def covered(part: Range, stride: int, window: int, low: int) -> Range:
    """The rows that windows `part` cover, which may reach past both ends: `low` rows of padding come first."""
    return Range(part.start.times(stride).plus(-low), (part.extent - 1) * stride + window, part.long)


class Pooling(Rule):
    """`out[i] = op over window of x[i * stride - low + window]`."""

    def _source(self, eqn: Equation, request: Want) -> dict[int, Range]:
        params, rows = eqn.params, eqn.ins[0].rows
        return {
            i: covered(
                request[i] or everything(eqn.outs[0].at[i]),
                int(params["window_strides"][i]),
                (int(params["window_dimensions"][i]) - 1) * int(params["window_dilation"][i]) + 1,
                int(params["padding"][i][0]),
            )
            for i in rows
        }

    def kind(self, eqn: Equation) -> Kind:
        dilated = any(int(eqn.params["base_dilation"][i]) != 1 for i in eqn.ins[0].rows)
        return Kind.WHOLE if dilated else Kind.BLOCK

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        source = self._source(eqn, request)
        want = tuple(within(source[i], size) if i in source else None for i, size in enumerate(eqn.ins[0].at))
        return [want]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:
        x, padding = ins[0], list(eqn.params["padding"])
        for axis, part in self._source(eqn, request).items():
            x = spread(x, axis, part, eqn.ins[0].at[axis], self._fill(eqn), at)
            padding[axis] = (0, 0)
        return bound(eqn, [x], padding=tuple(padding))

    def _fill(self, eqn: Equation) -> Any:
        kind = eqn.ins[0].dtype
        if eqn.name == "reduce_window_sum":
            return 0
        if jnp.issubdtype(kind, jnp.inexact):
            return -np.inf if eqn.name == "reduce_window_max" else np.inf
        limits = jnp.iinfo(kind)
        return limits.min if eqn.name == "reduce_window_max" else limits.max


class Picking(Rule):
    """Pooling by a program of the user's, and the derivatives of pooling: on each row where the windows are along
    other axes, else on all rows.
    """

    def kind(self, eqn: Equation) -> Kind:
        return Kind.WHOLE if slides_along_rows(eqn) else Kind.BLOCK

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        return [request if v.at else () for v in eqn.ins]


def slides_along_rows(eqn: Equation) -> bool:
    """Whether a window is longer than one row, or does not stand on each."""
    params = eqn.params
    for i in eqn.outs[0].rows:
        window, stride, pad = (params[k][i] for k in ("window_dimensions", "window_strides", "padding"))
        if (int(window), int(stride)) != (1, 1) or tuple(map(int, pad)) != (0, 0):
            return True
    return False


def convolution_specs(eqn: Equation) -> tuple[Any, Any, Any]:
    """The axes of the input, of the kernel and of the result: batch or features first, then space."""
    numbers = eqn.params["dimension_numbers"]
    return numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec


class Convolution(Rule):
    """Rows may be a batch, a spatial axis, or what is summed over."""

    def kind(self, eqn: Equation) -> Kind:
        lhs, rhs, _ = convolution_specs(eqn)
        left, right, made = eqn.ins[0].rows, eqn.ins[1].rows, eqn.outs[0].rows
        p = eqn.params
        grouped = p["feature_group_count"] != 1 or p["batch_group_count"] != 1
        spatial = [k for k in range(2, len(lhs)) if lhs[k] in left]
        if any(p["lhs_dilation"][k - 2] != 1 for k in spatial):
            return Kind.WHOLE
        if made:
            plain = set(left) <= {lhs[0], *lhs[2:]} and set(right) <= {rhs[0]}
            mixes = p["batch_group_count"] != 1 or (p["feature_group_count"] != 1 and right)
            return Kind.BLOCK if plain and not mixes else Kind.WHOLE
        if grouped or len(left) != 1 or len(right) != 1:
            return Kind.WHOLE
        return Kind.FOLD if (left, right) == ((lhs[1],), (rhs[1],)) or self._spatial(eqn) is not None else Kind.WHOLE

    def _spatial(self, eqn: Equation) -> int | None:
        """The spatial axis along which the kernel is as long as there are rows, as that of a weight's gradient."""
        lhs, rhs, _ = convolution_specs(eqn)
        return next((k for k in range(2, len(lhs)) if lhs[k] in eqn.ins[0].rows and rhs[k] in eqn.ins[1].rows), None)

    def _source(self, eqn: Equation, request: Want) -> dict[int, Range]:
        """For each spatial axis of rows, by its number, the range of the input; it may reach past its ends."""
        lhs, rhs, out = convolution_specs(eqn)
        p, found = eqn.params, {}
        for k in range(2, len(lhs)):
            if lhs[k] in eqn.ins[0].rows:
                window = (eqn.ins[1].at[rhs[k]] - 1) * int(p["rhs_dilation"][k - 2]) + 1
                part = request[out[k]] or everything(eqn.outs[0].at[out[k]])
                found[k] = covered(part, int(p["window_strides"][k - 2]), window, int(p["padding"][k - 2][0]))
        return found

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        lhs, rhs, out = convolution_specs(eqn)
        left: list[Range | None] = list(whole(eqn.ins[0]))
        right: list[Range | None] = list(whole(eqn.ins[1]))
        left[lhs[0]], right[rhs[0]] = request[out[0]], request[out[1]]
        for k, part in self._source(eqn, request).items():
            left[lhs[k]] = within(part, eqn.ins[0].at[lhs[k]])
        return [tuple(left), tuple(right)]

    def block(self, eqn: Equation, request: Want, ins: list[Any], at: At) -> list[Any]:
        lhs, _, _ = convolution_specs(eqn)
        x, padding = ins[0], list(eqn.params["padding"])
        for k, part in self._source(eqn, request).items():
            x = spread(x, lhs[k], part, eqn.ins[0].at[lhs[k]], 0, at)
            padding[k - 2] = (0, 0)
        return bound(eqn, [x, ins[1]], padding=tuple(padding))

    def fold(self, eqn: Equation) -> Folding:
        lhs, rhs, out = convolution_specs(eqn)
        p, k = eqn.params, self._spatial(eqn)
        kind = jnp.dtype(wide(eqn.outs[0].dtype))
        left, right = (lhs[1], rhs[1]) if k is None else (lhs[k], rhs[k])
        size = eqn.ins[0].at[left]

        def source(part: Range) -> Range:
            if k is None:
                return part
            step, stride = int(p["rhs_dilation"][k - 2]), int(p["window_strides"][k - 2])
            extent = (part.extent - 1) * step + 1 + (eqn.outs[0].at[out[k]] - 1) * stride
            return Range(part.start.times(step).plus(-int(p["padding"][k - 2][0])), extent)

        def wants(part: Range) -> list[Want | None]:
            rows = tuple(within(source(part), size) if i == left else None for i in range(len(eqn.ins[0].at)))
            return [rows, tuple(part if i == right else None for i in range(len(eqn.ins[1].at)))]

        def value(ins: list[Any], part: Range, at: At, own: Any) -> Any:
            if k is None:
                ins = [only(x, axis, own, 0) for x, axis in zip(ins, (left, right), strict=True)]
                return bound(eqn, ins, preferred_element_type=kind)[0]
            x = spread(ins[0], left, source(part), size, 0, at)
            padding = tuple((0, 0) if i == k - 2 else pair for i, pair in enumerate(p["padding"]))
            return bound(eqn, [x, ins[1]], padding=padding, preferred_element_type=kind)[0]

        rows, dim = eqn.ins[1].at[right], eqn.ins[1].shape[right]
        shares = k is None  # a row of the input may be in windows that count and in others
        return Folding(rows, dim, wants, value, ADD, lambda total: [total.astype(eqn.outs[0].dtype)], shares=shares)


_POOLS = ["reduce_window_sum", "reduce_window_max", "reduce_window_min"]
_PICKS = ["reduce_window", "select_and_scatter_add", "select_and_gather_add"]
RULES: dict[str, Rule] = dict.fromkeys(_POOLS, Pooling()) | dict.fromkeys(_PICKS, Picking())
RULES["conv_general_dilated"] = Convolution()
