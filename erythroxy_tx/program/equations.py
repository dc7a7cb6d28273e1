"""A traced program as a flat list of equations for a known number of rows: calls are opened, what is known is
computed, and what is computed twice is computed once. Shapes keep the unknown, to tell what is rows.
Not here: what an equation does to rows (`rules/`).
"""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from erythroxy_tx import _compat
from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program.numbers import computed
from erythroxy_tx.program.own_row import batched_by_row
from erythroxy_tx.program.strided import adds_to_all
from erythroxy_tx.program.strided import parts_of
from erythroxy_tx.program.strided import strided
from erythroxy_tx.program.symbol import Rows
from erythroxy_tx.program.symbol import Symbol
from erythroxy_tx.program.symbol import shown

_OPENED = {
    "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "checkpoint", "jit",
    "pjit", "remat2",
}  # fmt: skip
_DEAD = {"debug_callback", "debug_print"}
_FOLDED_ELEMENTS = 64  # numbers that the program computes from literals and from n, such as where a slice starts
_RANDOM = {"random_bits", "random_seed", "random_wrap", "random_unwrap", "random_fold_in", "random_split"}


@dataclasses.dataclass(eq=False, repr=False)
class Value:
    """One array of a program. `shape` has the unknown in it, `at` is the shape for the rows at hand; `of_rows`: whether
    what is `known` of it follows from their number.
    """

    shape: tuple[Any, ...]
    at: tuple[int, ...]
    dtype: Any
    maker: "Equation | None" = None
    known: Any = None
    of_rows: bool = False
    used: bool = False

    @functools.cached_property
    def rows(self) -> tuple[int, ...]:
        """The axes whose length depends on the number of rows."""
        return tuple(i for i, dim in enumerate(self.shape) if _compat.is_symbolic(dim))

    @property
    def keys(self) -> bool:
        """Whether it holds random keys, which are no numbers."""
        return bool(jnp.issubdtype(self.dtype, jax.dtypes.extended))

    def __str__(self) -> str:
        name = str(self.dtype) if self.keys else jnp.dtype(self.dtype).name
        short = name.replace("uint", "u").replace("int", "i").replace("bfloat", "bf").replace("float", "f")
        return shown(f"{short}[{','.join(map(str, self.shape))}]")


@dataclasses.dataclass(eq=False, repr=False)
class Equation:
    """One equation, its parameters those for the rows at hand; `symbolic` are those with the unknown in them."""

    index: int
    primitive: Any
    ins: list[Value]
    outs: list[Value]
    params: dict[str, Any]
    symbolic: dict[str, Any]
    line: str
    effects: Any
    opened: Callable[[Any], "Program"]

    @property
    def name(self) -> str:
        return str(self.primitive.name)

    def inside(self, closed: Any) -> "Program":
        """The flat program of one of its parameters."""
        return self.opened(closed)

    @property
    def predicate_is_batched(self) -> bool:
        """Of a while loop: whether each element of a batch goes on for itself."""
        return bool(_compat.closed(self.symbolic["cond_jaxpr"]).jaxpr.outvars[0].aval.shape)

    @property
    def rows(self) -> bool:
        """Whether it has anything to do with rows."""
        return any(v.rows for v in (*self.ins, *self.outs))


@dataclasses.dataclass(frozen=True)
class StandIn:
    """What an equation of our own has for a primitive: a name, under which its rule is found."""

    name: str


@dataclasses.dataclass(eq=False, repr=False)
class Program:
    """Equations in order, from `ins` to `outs`, for `rows` rows."""

    ins: list[Value]
    outs: list[Value]
    equations: list[Equation]
    symbol: Symbol
    rows: Any

    def at(self, dim: Any) -> int:
        return int(self.symbol.at(dim, self.rows))


def flatten(closed: Any, symbol: Symbol, rows: Rows, *, up_to: bool = False, asked_for: Rows | None = None) -> Program:
    """The flat program of a closed one; its constants that are None are its last inputs.

    **Arguments:** `up_to`: whether it is for any number of rows up to that one, so that the number is not known.
    `asked_for`: for how many rows what is opened is answered, by default for these.
    """
    builder = _Builder(symbol, rows, up_to=up_to, asked_for=rows if asked_for is None else asked_for)
    jaxpr = closed.jaxpr
    ins = [builder.value(v.aval) for v in jaxpr.invars]
    consts = []
    for var, const in zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True):
        consts.append(builder.known(const, var.aval))
        if const is None:
            ins.append(consts[-1])
    outs = builder.run(jaxpr, ins[: len(jaxpr.invars)], consts)
    for value in outs:
        value.used = True
    return Program(ins, outs, builder.equations, symbol, rows)


class _Builder:
    def __init__(self, symbol: Symbol, rows: Rows, *, up_to: bool, asked_for: Rows):
        self.symbol, self.rows, self.up_to, self.asked_for = symbol, rows, up_to, asked_for
        self.equations: list[Equation] = []
        self._same: dict[Any, list[Value]] = {}
        self._inside: dict[int, tuple[Any, Program]] = {}
        self._sizes: dict[int, tuple[Any, int]] = {}  # by the identity of a dimension, which is kept alive
        self._line = ""  # of the call that is open: what is inside of jnp has none of its own

    def value(self, aval: Any) -> Value:
        shape = tuple(getattr(aval, "shape", ()))
        return Value(shape, tuple(self.at(d) for d in shape), getattr(aval, "dtype", None))

    def at(self, dim: Any) -> int:
        if not _compat.is_symbolic(dim):
            return int(dim)
        if id(dim) not in self._sizes:
            self._sizes[id(dim)] = dim, self.symbol.at(dim, self.rows)
        return self._sizes[id(dim)][1]

    def known(self, constant: Any, aval: Any) -> Value:
        value = self.value(aval)
        value.known = constant
        return value

    def run(self, jaxpr: Any, ins: Sequence[Value], consts: Sequence[Value]) -> list[Value]:
        env: dict[Any, Value] = dict(zip(jaxpr.invars, ins, strict=True))
        env.update(zip(jaxpr.constvars, consts, strict=True))

        def of(var: Any) -> Value:
            if not isinstance(var, _compat.Literal):
                return env[var]
            aval: Any = var.aval
            return self.known(np.asarray(var.val, aval.dtype), aval)

        outer = self._line
        for eqn in jaxpr.eqns:
            self._line = _compat.source_line(eqn) or outer
            env.update(zip(eqn.outvars, self._equation(eqn, [of(v) for v in eqn.invars]), strict=True))
        self._line = outer
        return [of(v) for v in jaxpr.outvars]

    def _equation(self, eqn: Any, ins: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        if name in _DEAD and not eqn.outvars:
            return self._added(eqn, ins)
        if name in ("optimization_barrier", "batch_first"):
            return ins
        if name in _OPENED:
            return self._opened(_compat.closed(eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))), ins)
        if name == "custom_linear_solve":
            lengths, first = eqn.params["const_lengths"], eqn.params["const_lengths"].matvec
            first += lengths.vecmat
            return self._opened(eqn.params["jaxprs"].solve, [*ins[first : first + lengths.solve], *ins[sum(lengths) :]])
        if name == "call_hi_primitive":
            return self._opened(self._expanded(eqn), ins)
        if name == "dim_as_value" and not self.up_to:
            kind = eqn.outvars[0].aval
            number = np.asarray(self.at(eqn.params["dim"]), kind.dtype)
            return [dataclasses.replace(self.known(number, kind), of_rows=True)]
        if name == "split":
            parts = zip(eqn.outvars, parts_of(eqn.params, ins[0]), strict=True)
            return [self._made(lax.slice_p, params, ins, [var.aval])[0] for var, params in parts]
        if name == "gather" or name.startswith("scatter"):
            again = batched_by_row(name, eqn.params, ins)
            if again is not None:
                return self._made(eqn.primitive, *again, [v.aval for v in eqn.outvars])
            slices = strided(eqn.params, ins, self.at) if name == "gather" and not self.up_to else []
            for primitive, params in slices:
                ins = self._made(primitive, params, ins[:1], [v.aval for v in eqn.outvars])
            if slices:
                return ins
            if name in ("scatter-add", "scatter_add") and not self.up_to and adds_to_all(eqn.params, ins):
                return self._made(lax.add_p, {}, [ins[0], ins[2]], [v.aval for v in eqn.outvars])
        if name == "transpose" and (turned := self._turned(eqn, ins[0])) is not None:
            return turned
        return self._folded(eqn, ins) or self._added(eqn, ins)

    def _turned(self, eqn: Any, source: Value) -> list[Value] | None:
        """The transpose of a product of two matrices as the product of the second and the first, which is how one is
        added up: the gradient of `x @ w` with respect to w.
        """
        dot = source.maker
        if dot is None or dot.name != "dot_general":
            return None
        ((left, right), batch), precision = dot.params["dimension_numbers"], dot.params["precision"]
        first = len(dot.ins[0].at) - len(left)
        order = (*range(first, len(source.at)), *range(first))
        alike = precision is None or (isinstance(precision, tuple) and precision[0] == precision[1])
        if not alike or batch != ((), ()) or tuple(eqn.params["permutation"]) != order:
            return None
        params = dot.symbolic | {"dimension_numbers": ((right, left), batch)}
        return self._made(dot.primitive, params, dot.ins[::-1], [eqn.outvars[0].aval])

    def _opened(self, closed: Any, ins: Sequence[Value]) -> list[Value]:
        consts = [self.known(c, v.aval) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True)]
        return self.run(closed.jaxpr, ins, consts)

    def _expanded(self, eqn: Any) -> Any:
        types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        try:
            with self.symbol.standing_for(self.asked_for):
                return jax.make_jaxpr(lambda *xs: _compat.expanded(eqn, list(xs)))(*types)
        except (AssertionError, AttributeError, NotImplementedError, TypeError, ValueError) as error:
            raise RowMixingError(
                f"{eqn.primitive.name} at {self._line}, a function of JAX's own that cannot be opened for an unknown "
                "number of rows. Fix: declare out=, or take it out of the function."
            ) from error

    def _folded(self, eqn: Any, ins: list[Value]) -> list[Value] | None:
        """What an equation gives whose inputs are known numbers: integers, and one that is made a float."""
        if not all(isinstance(v.known, np.ndarray) for v in ins) or not ins or eqn.effects:
            return None
        outs = [self.value(v.aval) for v in eqn.outvars]
        small = all(not v.rows and np.prod(v.at) <= _FOLDED_ELEMENTS for v in (*ins, *outs))
        exact = all(jnp.issubdtype(v.dtype, jnp.integer) or v.dtype == bool for v in outs)
        number = eqn.primitive.name == "convert_element_type" and not outs[0].at
        if not small or not (exact or number) or eqn.primitive.name in _RANDOM or "callback" in eqn.primitive.name:
            return None
        found = computed(eqn.primitive, [v.known for v in ins], self._params(eqn.params))
        for value, result in zip(outs, found, strict=True):
            value.known, value.of_rows = result, any(v.of_rows for v in ins)
        return outs

    def _params(self, params: dict[str, Any]) -> dict[str, Any]:
        return {key: instantiated(value, self.at) for key, value in params.items()}

    def _added(self, eqn: Any, ins: list[Value]) -> list[Value]:
        return self._made(eqn.primitive, eqn.params, ins, [v.aval for v in eqn.outvars], eqn.effects)

    def _made(
        self, primitive: Any, params: dict[str, Any], ins: list[Value], avals: list[Any], effects: Any = ()
    ) -> list[Value]:
        """The outputs of an equation: those of an equal one, if there is one."""
        key = None if effects else self._key(primitive, params, ins, avals)
        if key is not None and key in self._same:
            return self._same[key]
        outs = [self.value(aval) for aval in avals]
        index = len(self.equations)
        made = Equation(
            index, primitive, ins, outs, self._params(params), dict(params), self._line, effects, self._open
        )
        for value in ins:
            value.used = True
        for value in outs:
            value.maker = made
        self.equations.append(made)
        if key is not None:
            self._same[key] = outs
        return outs

    def _key(self, primitive: Any, params: dict[str, Any], ins: list[Value], avals: list[Any]) -> Any:
        """What tells an equation from others; None for one with a program inside."""
        if any(hasattr(p, "eqns") or (isinstance(p, (tuple, list)) and any(hasattr(q, "eqns") for q in p))
               for p in params.values()):  # fmt: skip
            return None
        parts = [
            (v.known.dtype.name, v.known.shape, v.known.tobytes()) if isinstance(v.known, np.ndarray) else id(v)
            for v in ins
        ]
        if not params:  # the outputs follow from the inputs
            return primitive.name, tuple(parts)
        types = [(a.shape, a.dtype) for a in avals]
        return primitive.name, tuple(parts), str(sorted(params.items(), key=lambda item: item[0])), str(types)

    def _open(self, closed: Any) -> Program:
        if id(closed) not in self._inside:
            known = _compat.closed(closed)
            inner = flatten(known, self.symbol, self.rows, up_to=self.up_to, asked_for=self.asked_for)
            self._inside[id(closed)] = closed, inner
        return self._inside[id(closed)][1]


def instantiated(param: Any, at: Callable[[Any], int]) -> Any:
    """A parameter with the number of rows put in; programs inside keep the unknown."""
    if _compat.is_symbolic(param):
        return at(param)
    if type(param) is tuple:
        return tuple(instantiated(p, at) for p in param)
    return param
