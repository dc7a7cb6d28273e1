"""`tx.chunked` on random programs of rows: values, derivatives, and promises that are no looser than they must be."""

import hypothesis
import hypothesis.strategies as st
from jax import lax
from programs import EXACT
from programs import Program
from programs import arguments
from programs import programs

import erythroxy_tx as tx
from erythroxy_tx.testing import prove


@hypothesis.given(programs(), st.sampled_from([1, 3, 8]))
def test_random_programs_keep_their_promise(program: Program, size: int) -> None:
    f = tx.chunked(lax.map, size=size, in_axes=program.in_axes, out=program.out)(program.function())
    prove(f, arguments(), under=("jit", "grad"), max_examples=3)


@hypothesis.settings(max_examples=30)
@hypothesis.given(programs(), arguments(), st.integers(1, 20))
def test_exact_programs_are_promised_bitwise(program: Program, args: tuple, size: int) -> None:
    f = tx.chunked(lax.map, size=size, in_axes=program.in_axes, out=program.out)(program.function())
    promise = tx.contract(f, *args)
    assert promise[-3:] == (tx.Bitwise(), tx.Bitwise(), tx.Bitwise())
    exact = set(program.steps) <= set(EXACT)
    for kind, one in zip(program.kinds, promise, strict=False):
        assert (one == tx.Bitwise()) == (exact and kind == "rows")
