"""Equations whose results at a position depend on their inputs at that position."""

from typing import Any

from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.rules.rule import At
from erythroxy_tx.program.rules.rule import Rule
from erythroxy_tx.program.rules.rule import bound

NAMES = [
    "abs",
    "acos",
    "acosh",
    "add",
    "add_any",
    "and",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bessel_i0e",
    "bessel_i1e",
    "bits_of_bf16",
    "cbrt",
    "ceil",
    "clamp",
    "clz",
    "complex",
    "conj",
    "convert_element_type",
    "copy",
    "copy_p",
    "cos",
    "cosh",
    "digamma",
    "div",
    "eq",
    "eq_to",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "ge",
    "gt",
    "igamma",
    "igamma_grad_a",
    "igammac",
    "imag",
    "integer_pow",
    "is_finite",
    "le",
    "le_to",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "logistic",
    "lt",
    "lt_to",
    "max",
    "min",
    "mul",
    "mulhi",
    "name",
    "ne",
    "neg",
    "nextafter",
    "not",
    "one_minus_square",
    "or",
    "polygamma",
    "polynomial",
    "population_count",
    "pow",
    "random_clone",
    "random_fold_in",
    "random_gamma_grad",
    "random_seed",
    "real",
    "reduce_precision",
    "regularized_incomplete_beta",
    "rem",
    "round",
    "rsqrt",
    "select_n",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "stop_gradient",
    "sub",
    "tan",
    "tanh",
    "xor",
    "zeta",
]


class Elementwise(Rule):
    """`out[i] = op(a[i], b[i], …)`; numbers stand for every position."""

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        return [
            tuple(p if v.at[i] == eqn.outs[0].at[i] else None for i, p in enumerate(request)) if v.at else ()
            for v in eqn.ins
        ]

    def block(self, eqn: Equation, request: Any, ins: list[Any], at: At) -> list[Any]:  # noqa: ARG002
        return bound(eqn, ins)


class Wrapping(Elementwise):
    """A key and its data, which have one axis more on one side."""

    def wants(self, eqn: Equation, request: Want) -> list[Want | None]:
        return [tuple(request[i] if i < len(request) else None for i in range(len(eqn.ins[0].at)))]


RULES: dict[str, Rule] = dict.fromkeys(NAMES, Elementwise())
RULES |= dict.fromkeys(["random_wrap", "random_unwrap", "bitcast_convert_type"], Wrapping())
