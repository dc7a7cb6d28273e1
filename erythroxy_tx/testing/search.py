"""Drawing inputs until a test fails, and the smallest input on which it does: Hypothesis, run from inside a
function. Not here: what is tested.
"""

import random
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
from hypothesis import HealthCheck
from hypothesis import Phase
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from erythroxy_tx.progress import progress
from erythroxy_tx.testing.reproduce import as_code

_STALE = 10
# Compiling is slow, and a proof may be part of a larger property.
_SLOW = [HealthCheck.too_slow, HealthCheck.nested_given]


class Search:
    """How often a test was run, and what it raised at first.

    Hypothesis makes most inputs from the one before, so that of sixty only ten are drawn for themselves. Here each
    is the first of a run of its own: what comes up in one of ten inputs is then missed in one of five hundred
    searches, whatever the seed.
    """

    def __init__(self, label: str, *, max_examples: int | None, seed: int | None):
        self.label, self.seed = label, seed
        self.limit = max_examples or hypothesis.settings().max_examples
        self.tried = 0  # examples, those that shrink another left out
        self.failed: Exception | None = None
        self._simplest: str | None = None

    def run(self, test: Callable[[Any], None], inputs: SearchStrategy[Any]) -> None:
        """Test drawn inputs, the simplest one first.

        **Raises:** what `test` raises for the smallest input, and what it raised first where that input passes when
        it is tried again.
        """
        with progress(f"{self.label}: 0 of {self.limit} inputs") as update:

            def tried(drawn: Any) -> None:
                if self.failed is not None:
                    update(f"{self.label}: failed on input {self.tried}, looking for a smaller one")
                elif self._is_new(drawn):
                    self.tried += 1
                    update(f"{self.label}: {self.tried} of {self.limit} inputs")
                else:
                    return
                try:
                    test(drawn)
                except Exception as error:
                    self.failed = self.failed or error
                    raise

            seeds = random.Random(_drawn_seed() if self.seed is None else self.seed)  # noqa: S311  # no secrets
            try:
                self._property(tried, inputs, seeds.getrandbits(32), examples=1)()
                stale = 0  # runs in a row that drew the simplest input again, of which a strategy may have no other
                while self.tried < self.limit and stale < _STALE:
                    before = self.tried
                    self._property(tried, inputs, seeds.getrandbits(32), examples=2)()
                    stale = stale + 1 if self.tried == before else 0
            except Flaky:
                if self.failed is None:
                    raise
                self.failed.add_note(
                    "The same input passed when it was tried again: the candidate keeps state between calls, or is "
                    "not deterministic."
                )
                raise self.failed from None

    def _is_new(self, drawn: Any) -> bool:
        """Every run begins with the simplest input."""
        code = as_code(drawn)
        if self._simplest is None:
            self._simplest = code
            return True
        return code != self._simplest

    def _property(
        self, test: Callable[[Any], None], inputs: SearchStrategy[Any], seed: int, *, examples: int
    ) -> Callable[[], None]:
        given = hypothesis.settings()
        return hypothesis.settings(
            max_examples=examples,
            deadline=None,
            phases=[phase for phase in given.phases if phase is not Phase.explain],
            database=None,  # the inputs of all proofs would be one entry
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=hypothesis.Verbosity.quiet,
            suppress_health_check={*given.suppress_health_check, *_SLOW},
        )(hypothesis.seed(seed)(hypothesis.given(inputs)(test)))


def _drawn_seed() -> int:
    """A seed as the Hypothesis profile says: always the same one, that of the run, or another each time."""
    seen = [0]

    @hypothesis.settings(max_examples=2, database=None, suppress_health_check=[*_SLOW])
    @hypothesis.given(st.integers(0, 2**32 - 1))
    def draw(seed: int) -> None:
        seen.append(seed)

    draw()
    return seen[-1]
