"""`prove_relocation`: search for an input on which a port does not compute what its numpy original computes."""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from hypothesis.strategies import SearchStrategy

from erythroxy_tx.core.accuracy import Exact
from erythroxy_tx.core.compare import compare
from erythroxy_tx.core.compare import host_array
from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close
from erythroxy_tx.core.contract import Contract
from erythroxy_tx.core.relocation import as_tuples
from erythroxy_tx.core.relocation import dtype_fault
from erythroxy_tx.core.relocation import ties
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.errors import RelocationError
from erythroxy_tx.program.float64 import widened
from erythroxy_tx.program.terms import longest_sum
from erythroxy_tx.testing.attempt import Attempt
from erythroxy_tx.testing.attempt import Findings
from erythroxy_tx.testing.attempt import refused
from erythroxy_tx.testing.judge import Judge
from erythroxy_tx.testing.judge import traceable_part
from erythroxy_tx.testing.nearby import nearby
from erythroxy_tx.testing.nearby import strained
from erythroxy_tx.testing.proof import Proof
from erythroxy_tx.testing.proof import check_arguments
from erythroxy_tx.testing.reproduce import in_code
from erythroxy_tx.testing.reproduce import script


def prove_relocation(
    fn: Callable[..., Any],
    numpy_ref: Callable[..., Any],
    inputs: SearchStrategy[Any],
    *,
    contract: Any,
    atol: float = 0.0,
    max_examples: int | None = None,
    seed: int | None = None,
) -> Proof:
    """Search for an input on which a port does not compute what its numpy original computes, and shrink it.

    With `Bitwise()` every bit and every dtype must be the same. Otherwise float64 may become float32, and the
    tolerance grows with what float32 can do for the `L` terms of the port's longest sum: with `Close(rtol)`,
    `max |port - numpy| <= atol + (rtol + 4 √L eps) * max |numpy|`; with `AsAccurate(k)`, whose float64 result is the
    original's on float64 inputs, `units` is `16 + 4 √L`.

    **Arguments:**

    - `fn`: the port, decorated or not; a plain function is compiled by `jax.jit`.
    - `numpy_ref`: the original.
    - `inputs`: as in `prove`.
    - `contract`: `Bitwise()`, `Close(rtol)` or `AsAccurate(k)`.
    - `atol`: an absolute difference that `Close` allows on top, for results that are 0 but for rounding.
    - `max_examples`, `seed`: as in `prove`.

    **Returns:** a `Proof`.

    **Raises:** `RelocationError` with the smallest counterexample that was found: numbers, dtypes, or an error that
    the original raises and the port does not. What the port raises alone, and errors as in `prove`.

    >>> import jax.numpy as jnp, numpy as np, erythroxy_tx as tx
    >>> from erythroxy_tx.testing import prove_relocation, rows
    >>> print(prove_relocation(jnp.flip, np.flip, rows(5, 2), contract=tx.Bitwise(), max_examples=5))
    no counterexample to flip:
      numpy    5 inputs, values
    """
    check_arguments("prove_relocation", inputs, contract, max_examples, seed)
    if not isinstance(contract, (Bitwise, Close, AsAccurate)):
        raise TypeError(
            f"prove_relocation got contract={contract!r}. Expected Bitwise(), Close(rtol) or AsAccurate(k), one for "
            "every output."
        )
    for what, given in (("fn", fn), ("numpy_ref", numpy_ref)):
        if not callable(given):
            raise TypeError(f"prove_relocation got {what}={given!r}. Expected a function: the port, then its original.")
    if isinstance(atol, bool) or not isinstance(atol, (int, float)) or not 0 <= atol < math.inf:
        raise ValueError(f"prove_relocation got atol={atol!r}. Expected a finite number >= 0.")
    if atol and not isinstance(contract, Close):
        raise TypeError(
            f"prove_relocation got atol={atol!r} and contract={contract!r}. Expected atol= with Close alone."
        )
    return Port(fn, numpy_ref, contract, atol).search(inputs, max_examples, seed)


_NAMES = "numpy", "port"
_TINY = float(np.finfo(np.float32).tiny)  # what is below is flushed


class Port:
    """A port and its original, held to a contract. What it compiles is kept from search to search."""

    def __init__(self, fn: Any, numpy_ref: Callable[..., Any], contract: Contract, atol: float = 0.0):
        self.fn, self.numpy_ref, self.contract, self.atol = fn, numpy_ref, contract, max(atol, _TINY)
        self.judge = Judge(traceable_part(fn), fn)  # for the programs of the port
        self._terms: dict[Any, int] = {}

    def search(self, inputs: SearchStrategy[Any], max_examples: int | None, seed: int | None) -> Proof:
        """Look for a counterexample."""
        name = name_of(self.fn)
        fault = f"{name} does not compute what the numpy original {name_of(self.numpy_ref)} computes"
        attempt = Attempt(f"prove_relocation({name})", self.findings, fault, self._again, RelocationError)
        return Proof(name, (attempt.run("numpy", inputs, max_examples, seed),))

    def _again(self, args: tuple) -> str:
        """A program that compares one input."""
        options = f"contract={in_code(self.contract)}" + f", atol={self.atol!r}" * (self.atol > _TINY)
        call = f"tx.testing.prove_relocation(port, reference, st.just(args), {options})"
        return script({"port": self.fn, "reference": self.numpy_ref}, args, call)

    def findings(self, args: tuple) -> Findings:
        """What is wrong on one input."""
        example = self.judge.example(args)
        program = self.judge.program("reference", "jit", example, gradients=False)

        def call() -> Any:
            with np.errstate(over="ignore"):  # float64 becomes float32
                return self.fn(*args) if isinstance(self.fn, Transform) else program.compiled(example.leaves, ())[0][0]

        try:
            expected = self._original(example.leaves, example)
        except Exception as refusal:  # noqa: BLE001  # whatever the original raises
            return refused(refusal, [call])
        found = as_tuples(call())
        if isinstance(self.contract, Bitwise):
            outcome = compare(expected, found, names=_NAMES, dtype_fault=_any_dtype_fault)
        else:
            contract = self._scaled(example, program)
            exact = self._exact(example, program) if isinstance(contract, AsAccurate) else None
            outcome = compare(
                expected, found, contract, exact=exact, names=_NAMES, dtype_fault=dtype_fault, atol=self.atol
            )
        faults = [f"the result{leaf.path}: {'; '.join(leaf.faults)}" for leaf in outcome.leaves if leaf.faults]
        structures: list[Any] = [jtu.tree_structure(expected), jtu.tree_structure(found)]
        if faults and structures[0] == structures[1]:
            inputs = list(zip(example.names, example.leaves, strict=True))
            faults += [f'{line}. Fix: kind="stable" in the original' for line in ties(expected, found, inputs)]
        return Findings(faults, [(f"the result{leaf.path}", leaf) for leaf in outcome.leaves])

    def _original(self, leaves: tuple, example: Any) -> Any:
        """The original's result on copies: it may write to its arguments."""
        copies = tuple(x.copy() if isinstance(x, np.ndarray) else _on_host(x) for x in leaves)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # a mean of nothing, a division by zero
            return as_tuples(self.numpy_ref(*example.static.merge(copies)[0]))

    def _scaled(self, example: Any, program: Any) -> Contract:
        """The contract with what float32 can do for the port's longest sum."""
        key = example.static, tuple(map(jax.typeof, example.leaves))
        if key not in self._terms:
            self._terms[key] = longest_sum(program.values, *example.leaves)
        rounding = 4 * math.sqrt(self._terms[key])
        if isinstance(self.contract, AsAccurate):
            return dataclasses.replace(self.contract, units=self.contract.units + rounding)
        assert isinstance(self.contract, Close)
        return Close(self.contract.rtol + rounding * float(np.finfo(np.float32).eps))

    def _exact(self, example: Any, program: Any) -> Exact:
        wide = tuple(widened(example.leaves))
        try:
            known = self._original(wide, example)
        except Exception as error:
            raise NotImplementedError(
                f"{name_of(self.numpy_ref)} raises on float64 inputs: {error}. Expected an original that takes them, "
                "to know how exact its result is. Fix: state contract=Close(rtol)."
            ) from error
        return Exact(
            known,
            [run for one in nearby(example.leaves, wide, ties=True) for run in self._if_taken(one, example)],
            lambda: as_tuples(program.in_float64((example.leaves, ()), (wide, ()))[0][0]),
            lambda: (self._if_taken(strained(example.leaves), example) or [known])[0],
        )

    def _if_taken(self, leaves: tuple, example: Any) -> list[Any]:
        """The original's result, or nothing where a rounding unit takes an input out of what it accepts."""
        try:
            return [self._original(leaves, example)]
        except Exception:  # noqa: BLE001  # whatever the original raises
            return []


def _any_dtype_fault(reference: Any, candidate: Any) -> str | None:
    before, after = host_array(reference).dtype, host_array(candidate).dtype
    return dtype_fault(reference, candidate) or (None if before == after else f"dtype {before} → {after}")


def _on_host(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
