"""Drawing inputs until a test fails, and the smallest input on which it does: Hypothesis, run from inside a
function. Not here: what is tested.
"""

from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import HealthCheck
from hypothesis import Phase
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from erythroxy_tx.core.progress import progress

# Compiling is slow, and a proof may be part of a larger property.
_SLOW = [HealthCheck.too_slow, HealthCheck.nested_given]


class Search:
    """How often a test was run, and what it raised at first."""

    def __init__(self, label: str, *, max_examples: int | None, seed: int | None):
        self.label, self.max_examples, self.seed = label, max_examples, seed
        self.tried = 0  # examples, those that shrink another left out
        self.failed: Exception | None = None

    def run(self, test: Callable[[Any], None], inputs: SearchStrategy[Any]) -> None:
        """Test drawn inputs.

        **Raises:** what `test` raises for the smallest input, and what it raised first where that input passes when
        it is tried again.
        """
        limit = self.max_examples or hypothesis.settings().max_examples
        with progress(f"{self.label}: 0 of {limit} inputs") as update:

            def tried(drawn: Any) -> None:
                if self.failed is None:
                    self.tried += 1
                    update(f"{self.label}: {self.tried} of {limit} inputs")
                else:
                    update(f"{self.label}: failed on input {self.tried}, looking for a smaller one")
                try:
                    test(drawn)
                except Exception as error:
                    self.failed = self.failed or error
                    raise

            try:
                self._property(tried, inputs, limit)()
            except Flaky:
                if self.failed is None:
                    raise
                self.failed.add_note(
                    "The same input passed when it was tried again: the candidate keeps state between calls, or is "
                    "not deterministic."
                )
                raise self.failed from None

    def _property(self, test: Callable[[Any], None], inputs: SearchStrategy[Any], limit: int) -> Callable[[], None]:
        run, given = hypothesis.given(inputs)(test), hypothesis.settings()
        if self.seed is not None:
            run = hypothesis.seed(self.seed)(run)
        return hypothesis.settings(
            max_examples=limit,
            deadline=None,
            phases=[phase for phase in given.phases if phase is not Phase.explain],
            database=None,  # the inputs of all proofs would be one entry
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=hypothesis.Verbosity.quiet,
            suppress_health_check={*given.suppress_health_check, *_SLOW},
        )(run)
