"""Whether a candidate computes what its reference computes, on one input and in one way of calling: the values, the
derivatives, and what is raised. Not here: which inputs (`proof.py`), nor the ways (`ways.py`).
"""

import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from erythroxy_tx.core.accuracy import Exact
from erythroxy_tx.core.compare import Comparison
from erythroxy_tx.core.compare import compare
from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close
from erythroxy_tx.core.contract import Contract
from erythroxy_tx.core.numeric import LeafReport
from erythroxy_tx.core.stack import contract as contract_of
from erythroxy_tx.core.stack import stack
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.core.transform import with_innermost
from erythroxy_tx.program.float64 import widened
from erythroxy_tx.testing.attempt import Findings
from erythroxy_tx.testing.attempt import refused
from erythroxy_tx.testing.called import Example
from erythroxy_tx.testing.called import Fn
from erythroxy_tx.testing.called import Program
from erythroxy_tx.testing.nearby import nearby
from erythroxy_tx.testing.nearby import strained
from erythroxy_tx.testing.ways import WAYS
from erythroxy_tx.testing.ways import Way
from erythroxy_tx.testing.ways import is_smooth


class Judge:
    """A reference and a candidate, held to a contract.

    - `contract`: one for every output, or None for what the candidate's stack promises.
    - `programs`: what was compiled for other judges, of which the same references are taken.
    """

    def __init__(self, reference: Fn, candidate: Fn, contract: Any = None, programs: dict[Any, Program] | None = None):
        self.reference, self.candidate, self.contract = reference, candidate, contract
        self._programs = {} if programs is None else programs
        self._contracts: dict[Any, Any] = {}
        self._placed: dict[Any, Fn] = {}

    def direct(self, way_name: str) -> Fn | None:
        """The candidate as its user calls it, compiled; None where that is a plain function."""
        return self.placed(self.candidate, way_name, _compiled) if isinstance(self.candidate, Transform) else None

    @functools.cached_property
    def traceable(self) -> Fn | None:
        """What of the candidate works inside a trace, or None where that is the reference itself."""
        found = traceable_part(self.candidate)
        return None if found is self.reference else found

    def example(self, args: tuple) -> Example:
        """Divide an input into its parts."""
        names = [name for transform in stack(self.candidate) for name in transform._static_names()]
        return Example.of(self.reference, names, args)

    def findings(self, way_name: str, args: tuple, *, gradients: bool) -> Findings:
        """What is wrong on one input.

        **Raises:** `RefusedByBothError` where the reference and the candidate raise; what the candidate raises alone.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # float64 becomes float32
            return self._findings(self.example(args), way_name, gradients=gradients)

    def _findings(self, example: Example, way_name: str, *, gradients: bool) -> Findings:
        way = WAYS[way_name]
        gradients = gradients and way.gradients and any(map(is_smooth, example.leaves))
        held = _Held(self, way_name, way, example, gradients=gradients)
        try:
            expected = held.expected(example.inputs(way))
        except Exception as refusal:  # noqa: BLE001  # whatever the reference raises
            return refused(refusal, held.calls())
        return Findings(list(held.run(expected)), held.reports)

    def program(self, role: str, way_name: str, example: Example, *, gradients: bool) -> Program:
        """The program of the reference or of what of the candidate can be traced, kept for the next example."""
        way, fn = WAYS[way_name], self.reference
        if role == "candidate":
            fn = self.placed(self.traceable, way_name)
        key = id(fn), way.build, example.static, example.first, gradients
        if key not in self._programs:
            self._programs[key] = Program(fn, way, example, gradients=gradients)
        return self._programs[key]

    def placed(self, fn: Any, way_name: str, then: Callable[[Any], Fn] = lambda fn: fn) -> Fn:
        """The candidate, or a part of it, where a way of calling puts it: always in the same place."""
        key = id(fn), way_name, then
        if key not in self._placed:
            place = WAYS[way_name].place or (lambda fn: fn)
            placed = place(fn)
            self._placed[key] = then(placed) if isinstance(placed, Transform) else place(then(fn))
        return self._placed[key]

    def promise(self, example: Example) -> Any:
        """The contract for an input."""
        if self.contract is not None:
            return self.contract
        key = example.static, tuple(map(jax.typeof, example.leaves))
        if key not in self._contracts:
            self._contracts[key] = contract_of(self.candidate, *example.args)
        return self._contracts[key]


class _Held:
    """One example in one way of calling."""

    def __init__(self, judge: Judge, way_name: str, way: Way, example: Example, *, gradients: bool):
        self.judge, self.way, self.example, self.gradients = judge, way, example, gradients
        self.reference = judge.program("reference", way_name, example, gradients=gradients)
        self.candidate = self.direct = None
        if way.traced and judge.traceable is not None:
            self.candidate = judge.program("candidate", way_name, example, gradients=gradients)
        if way.direct:
            self.direct = judge.direct(way_name)
        self.reports: list[tuple[str, LeafReport]] = []
        self._exacts: dict[int, _Exacts] = {}

    @functools.cached_property
    def cotangents(self) -> tuple:
        return self.reference.cotangents(self.example.inputs(self.way)) if self.gradients else ()

    def expected(self, leaves: tuple) -> Any:
        return self.reference.compiled(leaves, self.cotangents)

    def calls(self) -> list[Callable[[], Any]]:
        """Every call of the candidate on this example."""
        found: list[Callable[[], Any]] = []
        if self.direct is not None:
            found.append(lambda: self.direct and self.direct(*self.example.args))
        if self.candidate is not None:
            inputs = self.example.inputs(self.way)
            found.append(lambda: self.candidate and self.candidate.compiled(inputs, self.cotangents))
        return found

    def run(self, expected: Any) -> Iterator[str]:
        """The faults of each call, none where it is right."""
        if self.direct is not None:
            yield from self._called(expected)
        if self.candidate is not None:
            inputs = self.example.inputs(self.way)
            how = " inside jax.jit" if self.direct is not None else ""
            if self.gradients and self.candidate.structs(inputs) != self.reference.structs(inputs):
                values = jax.jit(self.candidate.values)(*inputs)  # whose derivatives take other cotangents
                yield from self._compared(how, inputs, (expected[0], {}), (values, {}))
                return
            yield from self._compared(how, inputs, expected, self.candidate.compiled(inputs, self.cotangents))

    def _called(self, expected: Any) -> Iterator[str]:
        """Call the candidate on host arrays, and again after they were changed in place."""
        example = self.example
        copies = [x.copy() if isinstance(x, np.ndarray) else x for x in example.leaves]
        found = self._on_host(copies)
        yield from self._compared("", example.leaves, expected, found)
        if odd := [x for x in jtu.tree_leaves(found) if not isinstance(x, jax.Array)]:
            yield f"the result holds {type(odd[0]).__name__}, which is not on the device"
        for i, (copy, value) in enumerate(zip(copies, example.leaves, strict=True)):
            if isinstance(copy, np.ndarray) and copy.tobytes() != value.tobytes():
                yield f"the call changed its argument {self._name(i)} in place"
        try:
            of_twin = self.expected(example.twin)
        except Exception:  # noqa: BLE001  # the reference refuses the second input
            return
        for i, value in enumerate(example.twin):
            if isinstance(copies[i], np.ndarray) and copies[i].flags.writeable:
                copies[i][...] = value
            else:
                copies[i] = value.copy() if isinstance(value, np.ndarray) else value
        yield from self._compared(" after the inputs were changed", example.twin, of_twin, self._on_host(copies))
        yield from self._compared(" after the next call", example.leaves, expected, found)

    def _on_host(self, leaves: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        assert self.direct is not None
        return [self.direct(*self.example.static.merge(tuple(leaves))[0])], {}

    def _compared(self, how: str, leaves: tuple, expected: Any, found: Any) -> Iterator[str]:
        of_values = self.judge.promise(self.example)
        of_gradients = _loosest(_contracts(of_values))
        exacts = self._exacts.setdefault(id(leaves), _Exacts(self, leaves))
        for i, (reference, candidate) in enumerate(zip(expected[0], found[0], strict=True)):
            promise = of_values if i < len(expected[0]) - self.way.tangents else of_gradients
            exact = exacts.of(promise, lambda run, i=i: run[0][i])  # type: ignore[misc]
            outcome = compare(reference, candidate, promise, exact=exact)
            yield from self._told(self.way.results[i], how, outcome)
        for key, reference in expected[1].items():
            exact = exacts.of(of_gradients, lambda run, key=key: run[1][key])  # type: ignore[misc]
            outcome = compare(reference, found[1][key], of_gradients, exact=exact, dtype_fault=_dtype_fault)
            yield from self._told(f"the gradient with respect to {self._name(int(key))}", how, outcome)

    def _name(self, i: int) -> str:
        names = self.example.names
        return names[i % len(names)] + ", of the second input" * (i >= len(names))

    def _told(self, what: str, how: str, outcome: Comparison) -> Iterator[str]:
        for leaf in outcome.leaves:
            self.reports.append((f"{what}{leaf.path}{how}", leaf))
            if leaf.faults:
                yield f"{what}{leaf.path}{how}: {'; '.join(leaf.faults)}"


class _Exacts:
    """The results in float64 for one input, made when a contract asks for them."""

    def __init__(self, held: _Held, leaves: tuple):
        self.held, self.leaves = held, leaves
        self._nearby: dict[bool, list[Any]] = {}

    def _run(self, program: Program, leaves: tuple, cotangents: tuple) -> Any:
        return program.in_float64((self.leaves, self.cotangents), (leaves, cotangents))

    @property
    def cotangents(self) -> tuple:
        return self.held.cotangents

    @functools.cached_property
    def exact(self) -> Any:
        return self._run(self.held.reference, widened(self.leaves), widened(self.cotangents))

    @functools.cached_property
    def candidate(self) -> Any:
        assert self.held.candidate is not None
        return self._run(self.held.candidate, widened(self.leaves), widened(self.cotangents))

    @functools.cached_property
    def strained(self) -> Any:
        return self.held.reference.compiled(strained(self.leaves), self.cotangents)

    def nearby(self, *, ties: bool) -> list[Any]:
        if ties not in self._nearby:
            inputs, count = (*self.leaves, *self.cotangents), len(self.leaves)
            moved = nearby(inputs, widened(inputs), ties=ties)
            self._nearby[ties] = [self._run(self.held.reference, one[:count], one[count:]) for one in moved]
        return self._nearby[ties]

    def of(self, contract: Any, pick: Callable[[Any], Any]) -> Exact | None:
        """What is known of one part of the results, where a contract asks for it."""
        promises = [one for one in _contracts(contract) if isinstance(one, AsAccurate)]
        if not promises:
            return None
        ties = all(one.ties for one in promises)
        candidate = None if self.held.candidate is None else lambda: pick(self.candidate)
        strain = lambda: pick(self.strained)  # noqa: E731
        determined = ties or not any(np.isnan(x).any() for x in jtu.tree_leaves(self.exact[0]) if is_smooth(x))
        return Exact(pick(self.exact), list(map(pick, self.nearby(ties=ties))), candidate, strain, determined)


def traceable_part(fn: Any) -> Fn:
    """What works inside a trace of a decorated function: what is inside the last transform that does not."""
    found = fn
    for transform in stack(fn):
        if not transform.traceable:
            found = transform.fn
    return found


def _compiled(fn: Any) -> Fn:
    """A decorated function whose program is compiled: around `jax.jit` where no transform compiles it."""
    if not isinstance(fn, Transform) or any(transform.compiles for transform in stack(fn)):
        return fn
    return with_innermost(fn, jax.jit(unwrapped(fn)))


def _contracts(tree: Any) -> list[Contract]:
    return jtu.tree_leaves(tree, is_leaf=lambda one: isinstance(one, Contract))


def _dtype_fault(reference: Any, candidate: Any) -> str | None:
    """A change of dtype. The weak type of a derivative is left out: JAX's own batching of custom rules drops it."""
    return None if reference.dtype == candidate.dtype else f"dtype {reference.dtype} → {candidate.dtype}"


def _loosest(contracts: list[Contract]) -> Contract:
    """The promise of a derivative, to which every output may add."""
    given = [one.gradients or one for one in contracts]
    if accuracies := [one for one in given if isinstance(one, AsAccurate)]:
        return functools.reduce(
            lambda a, b: AsAccurate(max(a.k, b.k), units=max(a.units, b.units), ties=a.ties and b.ties), accuracies
        )
    if tolerances := [one for one in given if isinstance(one, Close)]:
        return max(tolerances, key=lambda one: one.rtol)
    return Bitwise()
