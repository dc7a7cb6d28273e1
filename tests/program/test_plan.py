"""How many passes a program takes, what is stored and carried, and what is refused."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.core.prefix import Prefix
from erythroxy_tx.program.auto import plan_call
from erythroxy_tx.program.equations import flatten
from erythroxy_tx.program.passes import Carry
from erythroxy_tx.program.plan import plan_of
from erythroxy_tx.program.residuals import cut
from erythroxy_tx.program.row_call import RowCall
from erythroxy_tx.program.stores import factor
from erythroxy_tx.program.stores import peak_bytes
from erythroxy_tx.program.symbol import symbol_for

X = jax.ShapeDtypeStruct((1000, 4), jnp.float32)
V = jax.ShapeDtypeStruct((1000,), jnp.float32)


def plan(fn, *args, size=100, allowed=0):
    return plan_call(RowCall("f", fn, fn, args, {}, Prefix.of(0)), size, allowed)


def standardised(x):
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-6)


@pytest.mark.parametrize(
    ("fn", "passes"),
    [
        (lambda x: x * 2, 1),
        (lambda x: (jnp.tanh(x), x.sum(0), x.max(0)), 1),
        (lambda x: (x.mean(0), x.var(0)), 1),
        (standardised, 2),
        (lambda x: jax.nn.softmax(x, axis=0), 3),
        (lambda x: standardised(x).T @ standardised(x), 1),
        (lambda x: standardised(x).T @ (standardised(x) @ jnp.ones(4)), 2),
        (lambda x: standardised(x) @ jnp.linalg.inv(standardised(x).T @ standardised(x)), 2),
        (lambda x: x[-1] + x[0], 0),
        (lambda x: x.reshape(-1, 8) * 2, 1),
        (lambda x: jnp.cumsum(x, 0) / x.sum(0), 2),
        (lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(4), x), 1),
        (lambda x: jnp.cumsum(x, 0)[::-1].cumsum(0), 2),
        (lambda x: jnp.sort(jnp.tanh(x), 0), 1),
        (lambda x: lax.fori_loop(0, 9, lambda i, w: w - x.T @ (x @ w) / 1000, jnp.ones(4)), 0),
        (lambda x: jnp.exp(-((x[:, None] - x) ** 2).sum(-1)) @ x, 1),
    ],
)
def test_passes(fn, passes: int) -> None:
    assert len(plan(fn, X).passes) == passes


def test_a_row_that_picks_from_itself_is_not_written_down() -> None:
    def cross_entropy(x):
        return -jax.nn.log_softmax(x)[jnp.arange(x.shape[0]), jnp.argmax(x, 1)].mean()

    for fn in (cross_entropy, jax.grad(cross_entropy)):
        assert not plan(fn, X).stored


def test_a_later_pass_backwards_takes_up_the_carry_of_each_chunk() -> None:
    def loss(w, x):
        return lax.scan(lambda c, r: (jnp.tanh(w * c + r), c @ c), jnp.zeros(4), x)[1].sum()

    found = plan(lambda x: jax.grad(loss)(jnp.ones(4), x), X)
    assert [one.reverse for one in found.passes] == [False, True]
    assert [t.saved for one in found.passes for t in one.tasks if isinstance(t, Carry)] == [True, False]


def deep(x):
    for i in range(12):
        x = jax.nn.relu(standardised(x @ (jnp.eye(4) * (1 + i))))
    return x


def test_a_deep_chain_stores_what_pays() -> None:
    bare, stored = plan(deep, X), plan(deep, X, allowed=2 * 16000)
    assert len(bare.passes) == len(stored.passes) == 13
    assert factor(bare) > 4
    assert factor(stored) < 1.3
    assert not bare.stored
    assert len(stored.stored) >= 11
    assert peak_bytes(stored) <= 2 * 16000


def test_a_plan_that_computes_too_much_is_refused() -> None:
    def deeper(x):
        for _ in range(45):
            x = standardised(x @ jnp.eye(4))
        return x

    with pytest.raises(tx.BudgetError, match=r"f got 46 passes, which compute .* times .* Fix: a larger budget="):
        plan(deeper, X)
    assert factor(plan(deeper, X, allowed=10**6)) < 2


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x: jnp.linalg.svd(x)[1], r"svd at .*test_plan.py:\d+.*: f32\[n,4\] → .*, which mixes all rows"),
        (lambda x: jnp.linalg.qr(x)[0], "which mixes all rows"),
        (lambda x: jnp.fft.fft(x, axis=0), "which mixes all rows"),
        (lambda x: jnp.linalg.solve(x @ x.T, x), r"lu at .*f32\[n,n\]"),
        (lambda x: jnp.sort((x @ x.T).reshape(-1)), r"which needs all of f32\[n,n\] at once"),
        (lambda x: jax.pure_callback(lambda a: a, X, x), "no rule says how it treats rows"),
        (lambda x: x * len(x), "Fix: use x.shape"),
    ],
)
def test_refusals(fn, says: str) -> None:
    with pytest.raises(tx.RowMixingError, match=says) as caught:
        plan(fn, X)
    assert str(caught.value).startswith("f ")
    assert "Fix: " in str(caught.value)


def test_an_effect_on_rows_is_refused() -> None:
    def fn(x):
        jax.debug.print("{}", x)
        return x

    with pytest.raises(tx.RowMixingError, match="once for each chunk and pass"):
        plan(fn, X)


def test_what_was_added_up_is_kept_for_the_gradient() -> None:
    def loss(w, x):
        h = standardised(jnp.tanh(x @ w))
        return (h @ jnp.linalg.solve(h.T @ h + jnp.eye(4), h.T @ x) ** 2).mean()

    symbol = symbol_for(1000)
    with symbol.standing_for(1000):
        row = jax.ShapeDtypeStruct((symbol.dim, 4), jnp.float32)
        closed = jax.make_jaxpr(lambda w, x, ct: [loss(w, x), jax.grad(loss)(w, x) * ct])(jnp.eye(4), row, 1.0)
    program = flatten(closed, symbol, 1000)
    halves = cut(program, 2, 1)
    assert halves.forward.outs[0] is program.outs[0]
    crossing = halves.forward.outs[1:]
    assert crossing
    assert all(not value.rows for value in crossing)
    both = [len(plan_of(half, 100).passes) for half in (halves.forward, halves.backward)]
    assert sum(both) < len(plan_of(program, 100).passes) + len(plan_of(halves.forward, 100).passes)
