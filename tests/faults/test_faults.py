"""Every planted fault is caught, and nothing is found in what is right. How many inputs each fault took is printed at
the end of the run.
"""

import of_chunks
import of_derivatives
import of_masks
import of_meshes
import of_nothing
import of_padding
import of_ports
import of_rows
import of_state
import of_streams
import of_values
import planted
import pytest

import erythroxy_tx as tx

MODULES = [
    of_chunks,
    of_padding,
    of_values,
    of_derivatives,
    of_state,
    of_ports,
    of_rows,
    of_masks,
    of_streams,
    of_meshes,
]
FAULTS = [fault for module in MODULES for fault in module.FAULTS]


@pytest.mark.sampled(0.2)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: planted.Case, record_property) -> None:
    with pytest.raises(tx.IdentityError) as caught:
        fault.search()(60, 0)
    record_property("planted fault", fault.name)
    record_property("way", caught.value.way)
    record_property("inputs", caught.value.examples)


@pytest.mark.sampled(0.2)
@pytest.mark.parametrize("case", of_nothing.CASES, ids=str)
def test_nothing_is_found_in_what_is_right(case: planted.Case, pytestconfig: pytest.Config) -> None:
    few = pytestconfig.getoption("--erythroxy-profile", default=None) == "ci"  # benchmarks/proofs.py tries many
    proof = case.search()(10 if few else None, None)
    assert proof.examples


def test_there_are_enough_of_them() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30
