"""`prove_no_leak` finds padding that reaches a result or a gradient, and nothing where none does."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest

import erythroxy_tx as tx
from erythroxy_tx.testing import lengths
from erythroxy_tx.testing import prove_no_leak
from erythroxy_tx.testing import rows

SOME = rows(lengths(8, min_length=1), 2, extremes=False, allow_nan=False, allow_infinity=False)


def by_mask(fn):
    return tx.pad_static(8, mask="there")(fn)


RIGHT = {
    "no mask of its own": tx.pad_static(8)(lambda x: (x.mean(0), jnp.cumsum(x, 0), jax.nn.softmax(x, 0))),
    "a mask": by_mask(lambda x, there: jnp.mean(x, axis=0, where=there[:, None])),
    "a length": tx.pad_static(8, length="n")(lambda x, n: jnp.where(jnp.arange(x.shape[0])[:, None] < n, x, 0).sum(0)),
    "results with rows": by_mask(lambda x, there: x - jnp.mean(x, axis=0, where=there[:, None])),
}
WRONG = {
    "no mask": by_mask(lambda x, there: x.sum(0)),
    "a product with the mask": by_mask(lambda x, there: (x * there[:, None]).sum(0)),
    "a mean over the limit": by_mask(lambda x, there: jnp.where(there[:, None], x, 0).mean(0)),
    "zeros in a maximum": by_mask(lambda x, there: jnp.where(there[:, None], x, 0).max(0)),
    "a gradient through the padding": by_mask(
        lambda x, there: jnp.where(there[:, None], jnp.sqrt(jnp.abs(x) + 1e-3), 0).sum(0)
    ),
    "the length is not the limit": tx.pad_static(8, length="n")(lambda x, n: x.sum(0) / jnp.maximum(n, 8)),
}


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_found_in_what_is_right(name: str) -> None:
    proof = prove_no_leak(RIGHT[name], SOME, max_examples=6)
    assert "6 inputs, values and gradients" in str(proof)


@pytest.mark.parametrize("name", WRONG)
def test_a_leak_is_found(name: str) -> None:
    with pytest.raises(tx.IdentityError, match="padding reaches a result") as caught:
        prove_no_leak(WRONG[name], SOME, max_examples=30)
    assert "prove_no_leak(f, st.just(args))" in str(caught.value)


def test_a_function_that_pads_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="which pads nothing"):
        prove_no_leak(jnp.sum, st.just(1.0))
