"""How reliable the proofs are: each planted fault is looked for with ten seeds, and what is right is proved with many.
`python benchmarks/proofs.py [--seeds 10] [--alarms 10]`. A fault that is missed once, or one false alarm, is printed
and makes the script fail.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "faults"))

import hypothesis
import of_chunks
import of_derivatives
import of_nothing
import of_padding
import of_ports
import of_state
import of_values
from hypothesis import Phase

import erythroxy_tx as tx
from erythroxy_tx.testing.registration import PROFILES

MODULES = (of_chunks, of_padding, of_values, of_derivatives, of_state, of_ports)


def faults(seeds: int) -> int:
    """The number of missed faults."""
    missed = 0
    for case in (case for module in MODULES for case in module.FAULTS):
        took, search = [], case.search()
        for seed in range(seeds):
            try:
                search(None, seed)
            except tx.IdentityError as caught:
                took.append(caught.examples)
        missed += seeds - len(took)
        note = "" if len(took) == seeds else f"   MISSED {seeds - len(took)} times"
        print(f"{statistics.median(took or [0]):6.1f} {max(took, default=0):4}  {case.name}{note}", flush=True)
    return missed


def alarms(seeds: int, first: int) -> tuple[int, int]:
    """The number of runs over what is right, one for each function and seed, and of false alarms among them."""
    raised = 0
    for case in of_nothing.CASES:
        start, before, search = time.perf_counter(), raised, case.search()
        for seed in range(first, first + seeds):
            try:
                search(None, seed)
            except (tx.ContractError, ValueError, TypeError) as error:
                raised += 1
                print(f"FALSE ALARM, seed {seed}, {case.name}: {error}", flush=True)
        print(
            f"{raised - before} alarms in {seeds} runs, {time.perf_counter() - start:4.0f} s  {case.name}", flush=True
        )
    return seeds * len(of_nothing.CASES), raised


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="seeds for each fault")
    parser.add_argument("--alarms", type=int, default=10, help="seeds for each right function")
    parser.add_argument("--first", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--profile", default="ci", choices=PROFILES, help="how many inputs")
    given = parser.parse_args()
    phases = [Phase.explicit, Phase.generate, Phase.target]  # how small a counterexample gets is not asked here
    hypothesis.settings.register_profile("proofs", max_examples=PROFILES[given.profile], phases=phases, database=None)
    hypothesis.settings.load_profile("proofs")
    print(
        f"inputs until each fault was caught, of at most {PROFILES[given.profile]}: median, most of {given.seeds} seeds"
    )
    missed = faults(given.seeds)
    runs, raised = alarms(given.alarms, given.first)
    print(f"{missed} missed in {given.seeds} seeds for each fault, {raised} false alarms in {runs} runs")
    return int(bool(missed or raised))


if __name__ == "__main__":
    sys.exit(main())
