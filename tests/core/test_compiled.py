"""The bytes of a compiled program."""

import jax
import jax.numpy as jnp
import pytest

from erythroxy_tx.core.compiled import ProgramBytes


def test_read_from_a_compiled_program() -> None:
    compiled = jax.jit(lambda x: (x + 1, x.sum())).lower(jnp.zeros(1000, jnp.float32)).compile()
    found = ProgramBytes.of(compiled)
    assert found.argument == 4000
    assert 4004 <= found.output < 4100
    assert found.alias == 0
    assert found.total == found.argument + found.output + found.temp


def test_donated_bytes_are_counted_once() -> None:
    compiled = jax.jit(lambda x: x + 1, donate_argnums=0).lower(jnp.zeros(1000, jnp.float32)).compile()
    found = ProgramBytes.of(compiled)
    assert found.alias == 4000
    assert found.total == 4000 + found.temp


@pytest.mark.parametrize("total", [(10, 20, 30, 5)])
def test_the_total(total: tuple[int, int, int, int]) -> None:
    found = ProgramBytes(*total)
    assert found.total == 55
    assert str(found) == "55 B (10 B argument, 20 B output, 30 B temp, 5 B alias)"
    assert found == ProgramBytes(*total)
