"""The search for a counterexample in one way of calling: what is tried, what a counterexample looks like, and whether
anything could have been found. Not here: how one input is judged.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from hypothesis.strategies import SearchStrategy

from erythroxy_tx import _compat
from erythroxy_tx.core.numeric import LeafReport
from erythroxy_tx.errors import ContractError
from erythroxy_tx.errors import IdentityError
from erythroxy_tx.testing.search import Search

_ENOUGH = 5  # comparisons after which an output that none of them decided is held to nothing


class RefusedByBothError(Exception):
    """The reference raises on an input, and so does the candidate."""


@dataclasses.dataclass(frozen=True)
class Findings:
    """What came of one input.

    - `faults`: what is wrong, in words.
    - `reports`: what was compared, by name.
    """

    faults: list[str]
    reports: list[tuple[str, LeafReport]] = dataclasses.field(default_factory=list)


def refused(refusal: Exception, calls: Iterable[Callable[[], Any]]) -> Findings:
    """What comes of an input that the reference refuses: the candidate must refuse it in each of its calls.

    **Raises:** `RefusedByBothError` where it does.
    """
    told, allowed = f"{type(refusal).__name__}: {refusal}", None
    for call in calls:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # whatever the candidate raises
            allowed = error
        else:
            return Findings([f"the reference raises {told}; the candidate returns a value"])
    raise RefusedByBothError(told) from allowed


@dataclasses.dataclass(frozen=True)
class WayProof:
    """What was tried in one way of calling."""

    way: str
    examples: int
    refused: int = 0
    gradients: bool = False
    note: str = ""

    def __str__(self) -> str:
        what = "values and gradients" if self.gradients else "values"
        refused = f", {self.refused} refused by both" if self.refused else ""
        return f"{self.way:8} " + (self.note or f"{self.examples} inputs, {what}{refused}")


class Attempt:
    """A search for an input on which something is wrong.

    - `told`: what is proved, for messages: `prove(f) under vmap`.
    - `judge`: what came of an input.
    - `fault`: the beginning of a counterexample's message.
    - `code`: a program that judges one input again.
    """

    def __init__(
        self,
        told: str,
        judge: Callable[[tuple], Findings],
        fault: str,
        code: Callable[[tuple], str],
        error: type[IdentityError] = IdentityError,
    ):
        self.told, self.judge, self.fault, self.code, self.kind = told, judge, fault, code, error
        self.refusals: list[RefusedByBothError] = []
        self.gradients = False
        self.compared = 0  # elements
        self.undecided: dict[str, int] = {}
        self.decided: set[str] = set()

    def run(self, way: str, inputs: SearchStrategy[Any], max_examples: int | None, seed: int | None) -> WayProof:
        """Try inputs.

        **Raises:** the counterexample; `ContractError` where there can be none.
        """
        self.way, self.search = way, Search(self.told, max_examples=max_examples, seed=seed)
        with _compat.without_compilation_cache():
            self.search.run(self._test, inputs)
        if self.refusals and len(self.refusals) == self.search.tried:
            raise ContractError(
                f"{self.told} compared nothing: the reference and the candidate raised on each of "
                f"{self.search.tried} inputs ({self.refusals[-1]}). Expected inputs that the reference takes, and "
                "ways in which it can be called. Fix: other inputs=, and for prove fewer under= or grads=False."
            ) from self.refusals[-1]
        if not self.compared and len(self.refusals) < self.search.tried:
            raise ContractError(
                f"{self.told} compared nothing: the results of {self.search.tried} inputs hold no number. Expected "
                "results with elements. Fix: a return value, or inputs= that are not all empty."
            )
        enough = min(_ENOUGH, self.search.tried)
        if vague := sorted(name for name, n in self.undecided.items() if n >= enough and name not in self.decided):
            raise ContractError(
                f"{self.told} decided nothing about {vague[0]}: on each of {self.undecided[vague[0]]} inputs the "
                "contract allows an error of more than a tenth of the largest magnitude, since the reference is as far "
                "from float64, or a rounding unit of the inputs moves the result as far. Expected inputs that "
                "determine the result. Fix: tamer inputs=, or contract=Close(rtol)."
            )
        return WayProof(way, self.search.tried, len(self.refusals), self.gradients)

    def _test(self, drawn: Any) -> None:
        __tracebackhide__ = True  # what is worth reading is the message
        args = drawn if type(drawn) is tuple else (drawn,)
        try:
            found = self.judge(args)
        except RefusedByBothError as refusal:
            self.refusals.append(refusal)
            return
        except Exception as error:
            if not any(note.startswith(self.told) for note in getattr(error, "__notes__", ())):
                error.add_note(f"{self.told}: raised by the candidate alone.\n\n{self.code(args)}")
            raise
        if found.faults:
            told = "\n  ".join(found.faults)
            fault = self.kind(f"{self.fault}, found with input {self.search.tried}:\n  {told}\n\n{self.code(args)}")
            fault.counterexample, fault.way, fault.examples = args, self.way, self.search.tried
            raise fault
        for name, report in found.reports:
            self.gradients |= name.startswith("the gradient")
            self.compared += report.total
            if report.decided:
                self.decided.add(name)
            elif report.decided is False:
                self.undecided[name] = self.undecided.get(name, 0) + 1
