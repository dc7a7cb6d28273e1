"""A function for every number of rows up to some, in one program: for each regime of them a branch, which runs on as
much place as its most rows need, with masks past those that are there.

Not here: which numbers share a regime (`regimes.py`), nor what a mask is (`masks/`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax

from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program.call import like
from erythroxy_tx.program.derivative import vjp_of
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.equations import Value
from erythroxy_tx.program.masks.extents import moved
from erythroxy_tx.program.masks.run import run_masked
from erythroxy_tx.program.regimes import Numbers
from erythroxy_tx.program.regimes import Regime
from erythroxy_tx.program.regimes import merged
from erythroxy_tx.program.residuals import cut

Leaves = list[Any]


class Masked:
    """A function of (numbers of rows, leaves with place for the most of them), see `derivative.RowFunction`.

    **Arguments:** `finest`: its programs, that of the most rows first. `label`: what is called, for errors.
    `result`: the types of its result, for the most rows; None of a derivative.
    """

    def __init__(self, finest: list[Regime], label: str, result: Any = None):
        self.finest, self.label, self._result = finest, label, result
        self.regimes = merged(finest, label)
        self.runs = [one for one in self.regimes if one.trace is not None]

    @functools.cached_property
    def types(self) -> list[jax.ShapeDtypeStruct]:
        """The types of the results, with place for the most rows of any regime."""
        found = [_type(v) for v in self.runs[0].program.outs]
        for one in self.runs[1:]:
            outs = one.program.outs
            if [(t.dtype, len(t.shape)) for t in found] != [(v.dtype, len(v.at)) for v in outs]:
                raise RowMixingError(
                    f"{self.label} gives ({_listed(self.runs[0])}) for some numbers of rows and ({_listed(one)}) for "
                    f"{one.told}. Expected results of the same dtypes and numbers of axes. Fix: the same kind of "
                    "result for any number of rows."
                )
            shapes = [tuple(map(max, t.shape, v.at)) for t, v in zip(found, outs, strict=True)]
            found = [jax.ShapeDtypeStruct(s, t.dtype) for s, t in zip(shapes, found, strict=True)]
        return found

    @property
    def kinds(self) -> list[Any]:
        return [t.dtype for t in self.types]

    def like_result(self, outs: Leaves) -> Any:
        """Give a flat list of results the structure, the dtypes and the weak types of the result."""
        leaves, treedef = jtu.tree_flatten(self._result)
        return jtu.tree_unflatten(treedef, [like(x, leaf) for x, leaf in zip(outs, leaves, strict=True)])

    def __call__(self, args: Leaves) -> Leaves:
        def branch(one: Regime, args: Leaves) -> Leaves:
            return _fitted(_run(self.label, one, one.program, args), self.types)

        return self._switch(self.checked(args) if self._result is None else args, branch)

    def vjp(self, wanted: list[int], live: list[int], *, with_results: bool = False) -> "Masked":
        return Masked([self._derived(one, wanted, live, with_results=with_results) for one in self.finest], self.label)

    def _derived(self, one: Regime, wanted: list[int], live: list[int], *, with_results: bool) -> Regime:
        if one.trace is None:
            return one
        try:
            derivative = vjp_of(one.trace, wanted, live, self.label, with_results=with_results)
            if one.single:
                return dataclasses.replace(one, trace=dataclasses.replace(derivative, rows=one.rows, up_to=False))
            return one.on(derivative, self.label)
        except Exception as error:
            if one.rows == self.runs[0].rows:
                raise
            return dataclasses.replace(one, trace=None, error=error)

    def halves(
        self, wanted: list[int], live: list[int]
    ) -> tuple[Callable[[Leaves], Leaves], Callable[[Leaves], Leaves]]:
        joint, results = self.vjp(wanted, live, with_results=True), len(self.kinds)
        arguments = len(joint.runs[0].program.ins) - len(live)
        found = {one.rows: cut(one.program, arguments, results, rows=True) for one in joint.runs}
        kept = {rows: [_type(v) for v in half.forward.outs[results:]] for rows, half in found.items()}

        def forward(args: Leaves) -> Leaves:
            def branch(one: Regime, args: Leaves) -> Leaves:
                outs = _run(self.label, one, found[one.rows].forward, args, results)
                own = {one.rows: outs[results:]}
                spread = [x for rows in kept for x in own.get(rows, [_zeros(t) for t in kept[rows]])]
                return [*_fitted(outs[:results], joint.types[:results]), *spread]

            return joint._switch(joint.checked(args), branch)

        def backward(args: Leaves) -> Leaves:
            def branch(one: Regime, args: Leaves) -> Leaves:
                left, own = iter(args[arguments + len(live) :]), list[Any]()
                for rows, types in kept.items():
                    values = [next(left) for _ in types]
                    own += values if rows == one.rows else []
                given = [*args[: arguments + len(live)], *own]
                outs = _run(self.label, one, found[one.rows].backward, given)
                return _fitted(outs, joint.types[results:])

            return joint._switch(args, branch)

        return forward, backward

    def _switch(self, args: Leaves, branch: Callable[[Regime, Leaves], Leaves]) -> Leaves:
        """Run the branch of the regime that the first arguments are the numbers of rows of."""
        if len(self.runs) == 1:
            return branch(self.runs[0], args)
        branches = [functools.partial(branch, one) for one in self.runs]
        return list(lax.switch(self._chosen(args)[1], branches, args))

    def _chosen(self, args: Leaves) -> tuple[Any, Any]:
        """Whether there is a program for the numbers of rows among the arguments, and which of those that run."""
        lengths = tuple(args[: len(self.regimes[0].rows)])
        there, index = jnp.zeros((), bool), jnp.int32(0)
        for one in reversed(self.regimes):  # those that come first were asked first
            holds = one.holds(lengths)
            there = jnp.where(holds, one.trace is not None, there)
            index = jnp.where(holds, self.runs.index(one) if one.trace is not None else 0, index)
        return there, index

    # ------------------------------------------------------------------ numbers of rows

    @functools.cached_property
    def defined(self) -> np.ndarray:
        """For which numbers of rows there is a result."""
        found = np.zeros(self.regimes[0].where.shape, bool)
        for one in self.runs:
            found |= one.where
        return found

    def regime_of(self, lengths: Numbers) -> Regime:
        """The regime of some numbers of rows."""
        return next(one for one in self.regimes if one.where[lengths])

    def checked(self, args: Leaves) -> Leaves:
        """The arguments, which raise when they run if there is no result for the numbers of rows among them."""
        if self.defined.all():
            return args
        names, (there, _) = len(self.regimes[0].rows), self._chosen(args)
        text = f"{self.label} has no result, or no derivative, for this number of rows"
        return [*(eqx.error_if(length, ~there, text) for length in args[:names]), *args[names:]]

    def sizes(self, lengths: tuple[Any, ...]) -> list[list[Any]]:
        """How long each axis of each result is: a number where it is always as long, or the lengths are numbers."""
        found = []
        for i, kind in enumerate(self.types):
            found.append([self._size(i, axis, size, lengths) for axis, size in enumerate(kind.shape)])
        return found

    def _size(self, out: int, axis: int, most: int, lengths: tuple[Any, ...]) -> Any:
        dims = [one.program.outs[out].shape[axis] for one in self.runs]
        if all(isinstance(dim, int) and dim == most for dim in dims):
            return most
        if all(isinstance(length, int) for length in lengths):
            one = self.regime_of(lengths)
            return one.program.symbol.at(one.program.outs[out].shape[axis], lengths)
        found: Any = most
        for one, dim in reversed(list(zip(self.runs, dims, strict=True))):
            found = jnp.where(one.holds(lengths), one.program.symbol.at(dim, lengths), found)
        return found


def _run(label: str, one: Regime, program: Program, args: Leaves, results: int | None = None) -> Leaves:
    """A program of a regime, on arguments with place for the most rows of any."""
    given = [_placed(x, v.at) for x, v in zip(args, program.ins, strict=True)]
    if one.single:
        given[: len(one.rows)] = one.rows
    try:
        return run_masked(program, given, results)
    except RowMixingError as error:
        raise RowMixingError(f"{label} got {error}") from None


def _fitted(outs: Leaves, types: list[jax.ShapeDtypeStruct]) -> Leaves:
    """Results with the place of all regimes."""
    found = [_placed(x, t.shape) for x, t in zip(outs, types, strict=True)]
    return [_strong(x, t.dtype) for x, t in zip(found, types, strict=True)]


def _placed(x: Any, shape: tuple[int, ...]) -> Any:
    for axis, size in enumerate(shape):
        if jnp.shape(x)[axis] != size:
            x = moved(x, axis, 0, size)
    return x


def _strong(x: Any, dtype: Any) -> Any:
    return x if jnp.issubdtype(dtype, jax.dtypes.extended) else lax.convert_element_type(x, dtype)


def _type(value: Value) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.at, value.dtype)


def _zeros(kind: jax.ShapeDtypeStruct) -> Any:
    return lax.full(kind.shape, 0, kind.dtype)


def _listed(one: Regime) -> str:
    return ", ".join(map(str, one.program.outs))
