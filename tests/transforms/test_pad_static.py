"""`pad_static`: one program for every length, results as without padding, and what it refuses."""

import contextlib
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 3)).astype(np.float32)
W = RNG.normal(size=(3, 2)).astype(np.float32)


def same(fn, *args, most=16, in_axes=0, rtol=2e-6, **options):
    """Hold a padded function to what it is without padding."""
    padded = tx.pad_static(most, in_axes=in_axes, **options)(fn)
    want, got = jax.jit(fn)(*args), padded(*args)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol * float(np.abs(a).max(initial=0)), equal_nan=True)
    return padded


@contextlib.contextmanager
def compiles() -> Iterator[list[str]]:
    """The compiles that happen inside."""
    seen: list[str] = []

    def listen(event: str, *_: object, **__: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def everything(x):
    h = jnp.tanh(x @ W)
    h = (h - h.mean(0)) / (h.std(0) + 1e-3)
    return {
        "rows": h,
        "last": x[-1],
        "count": x.shape[0],
        "sorted": jnp.sort(x, 0),
        "turned": jnp.cumsum(x, 0)[::-1],
        "best": x.argmax(0),
        "median": jnp.median(x, 0),
        "attended": jax.nn.softmax(x @ x.T) @ x,
        "shifted": jnp.diff(x, axis=0),
    }


@pytest.mark.parametrize("n", [16, 15, 7, 2, 1])
def test_as_without_padding(n: int) -> None:
    same(everything, X[:n])


def test_one_compile_for_every_length() -> None:
    padded = tx.pad_static(16)(everything)
    padded(X[:5])
    with compiles() as seen:
        for n in RNG.integers(1, 17, 200):
            padded(X[:n])
            padded(jax.device_put(X[:n]))
    assert not seen


def test_one_trace_for_every_length() -> None:
    traces = []

    @tx.pad_static(16)
    def f(x):
        traces.append(x.shape)
        return x.sum(0), x * 2

    f(X[:5])
    count = len(traces)
    for n in range(17):
        f(X[:n])
    assert len(traces) == count


def test_results_without_rows_stay_on_the_device() -> None:
    padded = tx.pad_static(16)(lambda x: x.sum(0))
    padded(X[:4])
    with jax.transfer_guard_device_to_host("disallow"):
        found = padded(X[:7])
    assert isinstance(found, jax.Array)


def test_no_row() -> None:
    same(lambda x: (x.sum(0), x * 2, jnp.cumsum(x, 0), x.shape[0], jnp.concatenate([x, x])), X[:0])
    assert np.isnan(tx.pad_static(4)(lambda x: x.mean(0))(X[:0])).all()


def test_a_length_for_which_the_function_raises() -> None:
    padded = tx.pad_static(16)(lambda x: x.max(0))
    padded(X)
    with pytest.raises(tx.LengthError, match=r"got 0 rows, for which the function raises ValueError: zero-size"):
        padded(X[:0])


def test_too_long() -> None:
    with pytest.raises(tx.LengthError, match=r"tx\.pad_static\(everything\) got x of length 16\. Expected at most 8"):
        tx.pad_static(8)(everything)(X)


def test_lengths_that_decide() -> None:
    def fn(x):
        return x[:10].sum(0) if x.shape[0] % 2 else x[-3:].max(0) if x.shape[0] > 4 else x.min(0)

    padded = tx.pad_static(16)(fn)
    for n in range(1, 17):
        np.testing.assert_allclose(padded(X[:n]), jax.jit(fn)(X[:n]), rtol=1e-6)


def test_a_function_that_decides_too_much_is_refused() -> None:
    def fn(x):
        return x.sum(0) * next(k * k for k in range(99) if x.shape[0] <= k)

    with pytest.raises(tx.RowMixingError, match="kinds of length"):
        tx.pad_static(16)(fn)(X)


def test_results_of_another_kind_are_refused() -> None:
    with pytest.raises(tx.RowMixingError, match="for some numbers of rows and"):
        tx.pad_static(16)(lambda x: x.sum(0) if x.shape[0] > 1 else x.sum())(X)


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda x: jnp.linalg.svd(x, compute_uv=False), "svd"),
        (lambda x: jnp.fft.fft(x, axis=0).real, "fft"),
        (lambda x: jnp.linalg.qr(x)[0], "qr"),
        (lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b, (0,)), "reduce"),
    ],
)
def test_what_has_no_exact_form_is_refused(fn, name: str) -> None:
    if name == "reduce":
        fn = lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b * a, (0,))  # noqa: E731
    with pytest.raises(tx.RowMixingError, match=rf"{name} at .*test_pad_static\.py"):
        tx.pad_static(16)(fn)(X[:7])


def test_effects_are_refused() -> None:
    def fn(x):
        jax.debug.callback(print, x)
        return x

    with pytest.raises(tx.RowMixingError, match="would happen for rows that are not there"):
        tx.pad_static(16)(fn)(X)


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_random_numbers_in_every_layout(axis: int, dtype) -> None:
    x = np.moveaxis(RNG.normal(size=(16, 3, 2)).astype(dtype), 0, axis)
    for n in (1, 7, 16):
        part = np.take(x, range(n), axis)
        same(lambda x: x + jax.random.normal(jax.random.key(3), x.shape, x.dtype), part, in_axes=axis)


def test_random_numbers_of_other_generators_are_refused() -> None:
    key = jax.random.key(0, impl="rbg")
    with pytest.raises(tx.RowMixingError, match="drawn by rbg"):
        tx.pad_static(16)(lambda x: x + jax.random.normal(key, x.shape))(X[:3])


# ---------------------------------------------------------------------- several arguments, several lengths


def test_arguments_that_share_a_length() -> None:
    same(lambda x, y, w: ((x @ w - y) ** 2).mean(), X[:9], X[:9, :2], W, in_axes=(0, 0, None))


def test_arguments_of_different_lengths() -> None:
    padded = tx.pad_static(16)(lambda x, y: (x * y).sum())
    with pytest.raises(ValueError, match="x has 9 along axis 0, y has 8 along axis 0"):
        padded(X[:9], X[:8])


def test_one_length_along_both_axes() -> None:
    padded = tx.pad_static({"n": 8}, in_axes={0: "n", 1: "n"})(
        lambda a: jnp.linalg.solve(a @ a.T + jnp.eye(a.shape[0]), a)
    )
    a = X[:5] @ X[:5].T
    np.testing.assert_allclose(padded(a), np.linalg.solve(a @ a.T + np.eye(5), a), rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="a has 5 along axis 0, a has 4 along axis 1"):
        padded(a[:, :4])


def test_other_axes_and_trees() -> None:
    same(lambda b, s: {"y": b["x"].sum(1) + s, "z": b["t"]}, {"x": X.T[:, :9], "t": X[:9]}, 2.0,
         in_axes=({"x": 1, "t": 0}, None))  # fmt: skip


def test_nothing_ragged() -> None:
    with pytest.raises(ValueError, match="nothing ragged"):
        tx.pad_static(8, in_axes=None)(jnp.sum)(X)


LIMITS = {"batch": 4, "seq": 8}
BOTH = {0: "batch", 1: "seq"}
XS = RNG.normal(size=(4, 8, 3)).astype(np.float32)


def pooled(x, w):
    """Mean pooling over a sequence, standardised over a batch."""
    h = jnp.tanh(x @ w).mean(1)
    return (h - h.mean(0)) / (h.std(0) + 1e-2), x.reshape(-1, 3).max(0), x[:, ::-1], x.shape[0] * x.shape[1]


@pytest.mark.parametrize(("b", "s"), [(4, 8), (3, 5), (1, 8), (4, 1), (1, 1), (2, 2), (4, 4)])
def test_two_ragged_axes(b: int, s: int) -> None:
    same(pooled, XS[:b, :s], W, most=LIMITS, in_axes=(BOTH, None))


def test_two_ragged_axes_compile_once() -> None:
    padded = tx.pad_static(LIMITS, in_axes=(BOTH, None))(pooled)
    padded(XS, W)
    with compiles() as seen:
        for b in range(1, 5):
            for s in range(1, 9):
                padded(XS[:b, :s], W)
    assert not seen


def test_two_lengths_of_different_arguments() -> None:
    def fn(x, y):
        return jax.nn.softmax(x @ y.T) @ y

    padded = tx.pad_static({"q": 6, "k": 9}, in_axes=({0: "q"}, {0: "k"}))(fn)
    for q, k in ((6, 9), (3, 7), (1, 2), (5, 5)):
        np.testing.assert_allclose(padded(X[:q], X[:k]), fn(X[:q], X[:k]), rtol=1e-5, atol=1e-6)


def test_a_limit_of_two_is_named() -> None:
    padded = tx.pad_static(LIMITS, in_axes=(BOTH, None))(pooled)
    with pytest.raises(tx.LengthError, match=r"x of length 9 along 'seq'\. Expected at most 8"):
        padded(np.zeros((2, 9, 3), np.float32), W)


# ---------------------------------------------------------------------- buckets, Padded


def test_buckets_compile_once_each() -> None:
    padded = tx.pad_static(buckets=(4, 16))(everything)
    for n in (3, 9):
        padded(X[:n])
    with compiles() as seen:
        for n in range(1, 17):
            padded(X[:n])
    assert not seen
    with pytest.raises(tx.LengthError, match="at most 16"):
        padded(np.zeros((17, 3), np.float32))


def test_padded_results_are_taken_as_they_are() -> None:
    first = tx.pad_static(16, keep_padded=True)(jnp.tanh)
    second = tx.pad_static(16)(lambda h: (h.mean(0), h))
    second(first(X[:3]))
    with compiles() as seen:
        kept = first(X[:7])
        mean, rows = second(kept)
    assert not seen
    assert (kept.data.shape, int(kept.length), int(kept.mask.sum())) == ((16, 3), 7, 7)
    np.testing.assert_allclose(mean, np.tanh(X[:7]).mean(0), rtol=1e-6)
    np.testing.assert_allclose(rows, np.tanh(X[:7]), rtol=1e-6)
    np.testing.assert_allclose(kept.trim(), np.tanh(X[:7]), rtol=1e-6)


def test_padded_inside_of_jit() -> None:
    padded = tx.pad_static(16)(lambda x: x.mean(0))
    step = jax.jit(lambda p: padded(p) * 2)
    for n in (5, 9):
        np.testing.assert_allclose(step(*padded.pad(X[:n], fill=np.nan)), X[:n].mean(0) * 2, rtol=1e-6)
    assert step._cache_size() == 1


def test_rows_of_a_traced_length_are_not_trimmed() -> None:
    padded = tx.pad_static(16)(lambda x: x * 2)
    with pytest.raises(ValueError, match="keep_padded=True"):
        jax.jit(padded)(*padded.pad(X[:5]))


def test_padded_of_less_place() -> None:
    padded = tx.pad_static(16)(lambda x: x.mean(0))
    np.testing.assert_allclose(padded(tx.Padded(jnp.asarray(X[:8]), 5)), X[:5].mean(0), rtol=1e-6)
    with pytest.raises(tx.LengthError, match="of length 16"):
        tx.pad_static(8)(lambda x: x.mean(0))(tx.Padded(jnp.asarray(X), 5))


def test_padded_says_what_it_refuses() -> None:
    with pytest.raises(tx.LengthError, match=r"length=9 along axis 0\. Expected 0 to 8"):
        tx.Padded(jnp.zeros(8), 9)
    with pytest.raises(ValueError, match="axis=2"):
        tx.Padded(jnp.zeros(8), 3, 2)


def test_padded_along_two_axes() -> None:
    x = tx.Padded(jnp.arange(12.0).reshape(3, 4), (2, 3), (0, 1))
    assert x.mask.tolist() == [[True] * 3 + [False]] * 2 + [[False] * 4]
    assert x.trim().tolist() == [[0, 1, 2], [4, 5, 6]]


# ---------------------------------------------------------------------- inside of traces


def test_inside_of_jit_and_vmap() -> None:
    padded = tx.pad_static(16)(lambda x: (x.mean(0), x[::-1]))
    for found in (jax.jit(padded)(X[:5]), jax.vmap(padded)(X[None, :5])):
        np.testing.assert_allclose(np.ravel(found[0]), X[:5].mean(0), rtol=1e-6)
        np.testing.assert_array_equal(np.reshape(found[1], (5, 3)), X[4::-1])


def test_inside_of_chunked_and_around_it() -> None:
    def fn(x):
        return (x - x.mean(0)) / x.std(0)

    for both in (
        tx.chunked(lax.map, size=4)(tx.pad_static(16)(fn)),
        tx.pad_static(16)(tx.chunked(lax.map, size=4)(fn)),
    ):
        np.testing.assert_allclose(both(X[:9]), fn(X[:9]), rtol=1e-5, atol=1e-6)


def test_methods_and_modules() -> None:
    class Model(eqx.Module):
        w: jax.Array

        @tx.pad_static(16)
        def __call__(self, x):
            return jnp.tanh(x @ self.w).mean(0)

    model = Model(jnp.asarray(W))
    model(X[:3])
    with compiles() as seen:
        found = [model(X[:n]) for n in (5, 9)]
        again = Model(jnp.asarray(W) * 2)(X[:5])
    np.testing.assert_allclose(found[0], np.tanh(X[:5] @ W).mean(0), rtol=1e-5)
    np.testing.assert_allclose(again, np.tanh(X[:5] @ W * 2).mean(0), rtol=1e-5)
    assert len(seen) <= 1  # of the doubled weights


def test_static_arguments() -> None:
    padded = tx.pad_static(16, static_argnames="kind")(lambda x, kind: getattr(jnp, kind)(x, axis=0))
    np.testing.assert_array_equal(padded(X[:5], "max"), X[:5].max(0))
    np.testing.assert_array_equal(padded(X[:5], kind="min"), X[:5].min(0))


# ---------------------------------------------------------------------- gradients


def loss(w, x, y):
    h = jnp.tanh(x @ w)
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-3)
    return ((h - y) ** 2).mean() + jax.nn.logsumexp(h)


@pytest.mark.parametrize("n", [16, 7, 2, 1])
def test_gradients(n: int) -> None:
    padded = tx.pad_static(16, in_axes=(None, 0, 0))(loss)
    args = W, X[:n], X[:n, :2]
    want = jax.jit(jax.value_and_grad(loss, (0, 1)))(*args)
    for got in (jax.value_and_grad(padded, (0, 1))(*args), jax.jit(jax.value_and_grad(padded, (0, 1)))(*args)):
        for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_gradients_compile_once() -> None:
    padded = tx.pad_static(16, in_axes=(None, 0, 0))(loss)
    step = jax.jit(jax.grad(padded))
    step(W, *padded.pad(W, X[:5], X[:5, :2])[1:])
    with compiles() as seen:
        for n in range(1, 17):
            found = step(W, *padded.pad(W, X[:n], X[:n, :2], fill=np.nan)[1:])
            np.testing.assert_allclose(found, jax.jit(jax.grad(loss))(W, X[:n], X[:n, :2]), rtol=1e-4, atol=1e-5)
    assert len(seen) <= 16  # of what it is compared with


def test_the_gradient_itself_padded() -> None:
    both = tx.pad_static(16, in_axes=(None, 0, 0))(jax.value_and_grad(loss, (0, 1)))
    both(W, X[:5], X[:5, :2])
    with compiles() as seen:
        value, (of_w, of_x) = both(W, X[:9], X[:9, :2])
    assert not seen
    want, (w, x) = jax.jit(jax.value_and_grad(loss, (0, 1)))(W, X[:9], X[:9, :2])
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(of_w, w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_x, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0).sum(),
        lambda x: (x / jnp.linalg.norm(x, axis=1, keepdims=True)).sum(0)[0],
        lambda x: jnp.log(jnp.abs(x)).mean(),
        lambda x: jax.nn.softmax(x, 0)[0, 0],
    ],
)
def test_gradients_of_padding_are_zero_and_never_nan(fn) -> None:
    padded = tx.pad_static(16)(fn)
    x = np.abs(X[:5]) + 0.1
    for fill in (0.0, np.nan, np.inf):
        (given,) = padded.pad(x, fill=fill)
        found = jax.jit(jax.grad(lambda d: padded(tx.Padded(d, 5))))(given.data)
        assert not np.asarray(found[5:]).any()
        np.testing.assert_allclose(found[:5], jax.grad(fn)(x), rtol=1e-5, atol=1e-6)


def test_second_derivatives() -> None:
    def fn(w, x):
        return jnp.tanh(x @ w).mean() ** 2 + jax.nn.logsumexp(x @ w)

    padded = tx.pad_static(16, in_axes=(None, 0))(fn)
    along = lambda f: jax.jit(jax.grad(lambda w: (jax.grad(f)(w, X[:7]) ** 2).sum()))  # noqa: E731
    np.testing.assert_allclose(along(padded)(W), along(fn)(W), rtol=1e-4, atol=1e-6)


def test_custom_rules_are_kept() -> None:
    @jax.custom_vjp
    def odd(x):
        return x * 2

    odd.defvjp(lambda x: (x * 2, x), lambda x, g: (g * 7 + x,))
    fn = lambda x: odd(x).sum() + jax.nn.relu(x * 0).sum()  # noqa: E731
    np.testing.assert_array_equal(jax.grad(tx.pad_static(16)(fn))(X[:5]), jax.grad(fn)(X[:5]))


# ---------------------------------------------------------------------- functions that mask by themselves


def test_a_mask_of_its_own() -> None:
    @tx.pad_static(16, mask="there")
    def fn(x, there):
        return jnp.where(there[:, None], x, 0).sum(0), x * 2

    total, rows = fn(X[:5])
    np.testing.assert_allclose(total, X[:5].sum(0), rtol=1e-6)
    np.testing.assert_array_equal(rows, X[:5] * 2)


def test_nothing_is_traced_for_another_length_of_a_function_with_a_mask() -> None:
    traces = []

    @tx.pad_static(16, mask="there")
    def fn(x, there):
        traces.append(x.shape)
        return jnp.where(there[:, None], x, 0)

    fn(X[:5])
    count = len(traces)
    for n in range(17):
        assert fn(X[:n]).shape == (n, 3)
    assert len(traces) == count


def test_a_length_of_its_own() -> None:
    @tx.pad_static(16, length="n")
    def fn(x, n):
        return jnp.where(jnp.arange(x.shape[0])[:, None] < n, x, 0).sum(0) / n

    with compiles() as seen:
        for n in (5, 9, 16):
            np.testing.assert_allclose(fn(X[:n]), X[:n].mean(0), rtol=1e-6)
    assert len(seen) == 1


# ---------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (tx.pad_static, "neither max_len nor buckets"),
        (lambda: tx.pad_static(4, buckets=(4,)), "max_len and buckets"),
        (lambda: tx.pad_static(0), "max_len=0"),
        (lambda: tx.pad_static(buckets=(8, 4)), "several that grow"),
        (lambda: tx.pad_static({"a b": 4}), "names of lengths"),
        (lambda: tx.pad_static(4, in_axes="rows"), "Expected ints and None"),
        (lambda: tx.pad_static(LIMITS, in_axes=0), "dicts of axis to one of"),
        (lambda: tx.pad_static(LIMITS, in_axes={0: "rows"}), "dicts of axis to one of"),
        (lambda: tx.pad_static(LIMITS, in_axes=BOTH, mask="m"), "mask='m'"),
    ],
)
def test_bad_parameters(given, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        given()


def test_bare_use_is_refused() -> None:
    with pytest.raises((TypeError, ValueError), match=r"tx\.pad_static got"):

        @tx.pad_static
        def fn(x):
            return x


def test_random_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="random keys along an axis that is padded"):
        tx.pad_static(8)(jax.vmap(jax.random.normal))(jax.random.split(jax.random.key(0), 3))


def test_explain_names_what_is_masked() -> None:
    told = str(tx.explain(tx.pad_static(16)(everything), X[:5]))
    assert "any length up to 16, in one compile" in told
    assert "reduce_sum: f32[n,2] → f32[2]" in told
    assert "0 rows: refused" in told


# ---------------------------------------------------------------------- found in use


def test_lengths_of_their_own_inside_of_a_ragged_batch() -> None:
    inner = tx.pad_static(6)(lambda t: jnp.tanh(t).mean())

    def fn(d, n):
        return jax.vmap(lambda t, k: inner(tx.Padded(t, k)))(d, n)

    padded = tx.pad_static(4)(fn)
    d, n = RNG.normal(size=(3, 6)).astype(np.float32), np.array([1, 2, 6], np.int32)
    want = [np.tanh(row[:k]).mean() for row, k in zip(d, n, strict=True)]
    np.testing.assert_allclose(padded(d, n), want, rtol=1e-5)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="a length below 0 or above 6"):
        padded(d, n + 3)


def test_a_batch_of_padded_arrays_is_refused_outside_of_vmap() -> None:
    batch = jax.vmap(tx.Padded)(jnp.ones((3, 6)), jnp.array([1, 2, 3]))
    for asked in (lambda: batch.mask, batch.trim, lambda: tx.pad_static(6)(jnp.sum)(batch)):
        with pytest.raises(ValueError, match=r"lengths of shape \(3,\): a batch of them.*jax\.vmap"):
            asked()
    with pytest.raises(ValueError, match="a length of shape"):
        tx.Padded(jnp.ones((3, 6)), jnp.array([1, 2, 3]))
    np.testing.assert_array_equal(jax.vmap(lambda p: p.mask)(batch).sum(1), [1, 2, 3])


@pytest.mark.parametrize("length", [2.7, "2", True, np.float32(2)])
def test_a_length_is_an_integer(length) -> None:
    with pytest.raises(TypeError, match="Expected an integer"):
        tx.Padded(jnp.ones(3), length)


def test_a_function_that_raises_for_the_limit() -> None:
    def fn(x):
        if x.shape[0] > 9:
            raise KeyError("at most nine")
        return x.reshape(-1, 3, 3).sum(0)

    with pytest.raises(KeyError, match="at most nine"):
        tx.pad_static(16)(fn)(X[:12])
    padded = tx.pad_static(16)(fn)
    np.testing.assert_allclose(padded(X[:3]), X[:3].reshape(-1, 3, 3).sum(0), rtol=1e-6)
    with pytest.raises(tx.LengthError, match="got 12 rows, for which the function raises KeyError: 'at most nine'"):
        padded(X[:12])


def test_text_is_refused() -> None:
    with pytest.raises(tx.RowMixingError, match="takes the number of rows as text"):
        tx.pad_static(16)(lambda x: x.sum() * len(f"{x.shape}"))(X[:3])


def test_two_results_of_one_function_have_lengths_of_their_own() -> None:
    both = tx.pad_static(16, keep_padded=True)(lambda x: (x, x[1:]))(X[:5])
    with pytest.raises(ValueError, match="a has 5 along axis 0, b has 4 along axis 0"):
        tx.pad_static(16)(lambda a, b: a.sum() + b.sum())(*both)


def test_a_table_as_long_as_the_limit() -> None:
    table = jnp.arange(16.0)[:, None]
    own = tx.pad_static(16, mask="there")(lambda x, there: jnp.where(there[:, None], x + table, 0).sum(0))
    np.testing.assert_allclose(own(X[:5]), (X[:5] + table[:5]).sum(0), rtol=1e-6)
    with pytest.raises(tx.RowMixingError, match="raises for other numbers of places than 16, so that"):
        tx.pad_static(16, mask="there")(lambda x, there: x + table)(X[:5])


def test_a_callback_is_not_run_while_tracing() -> None:
    calls = []

    def fn(x):
        count = jax.pure_callback(lambda n: calls.append(1) or n, jax.ShapeDtypeStruct((), jnp.int32), np.int32(2))
        return x.sum(0) * count

    tx.explain(tx.chunked(lax.map, size=4)(fn), X)
    assert not calls


def test_what_looks_at_a_padded_function_takes_padded_arguments_and_masks() -> None:
    own = tx.pad_static(16, mask="there")(lambda x, there: jnp.where(there[:, None], x, 0).sum(0))
    assert tx.contract(own, X[:5]) == tx.AsAccurate(4)
    assert "is given there, and masks by itself" in str(tx.explain(own, X[:5]))
    plain = tx.pad_static(16)(lambda x: x.max(0))
    assert str(tx.explain(plain, X[:5])) == str(tx.explain(plain, *plain.pad(X[:5])))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, m: x[:-3],
        lambda x, m: jnp.diff(x, axis=0),
        lambda x, m: jnp.concatenate([x, jnp.ones((2, 3))]),
    ],
)
def test_results_of_a_function_with_a_mask_that_are_shorter(fn) -> None:
    padded = tx.pad_static(16, mask="m")(fn)
    for n in (2, 3, 16):
        assert padded(X[:n]).shape == fn(X[:n], None).shape


@pytest.mark.parametrize("fn", [lambda x, m: x[::2], lambda x, m: x[: min(4, x.shape[0])]])
def test_results_of_a_function_with_a_mask_that_grow_otherwise(fn) -> None:
    with pytest.raises(tx.RowMixingError, match="grows by one with each row"):
        tx.pad_static(16, mask="m")(fn)(X[:3])


def test_padding_sets_off_no_check_of_nan_and_promotes_no_rank() -> None:
    def fn(x):
        turned, place = x[::-1], x.shape[0] - jnp.arange(x.shape[0])
        return turned / turned, x * jnp.log(place)[:, None], x.at[jnp.array([0])].get(mode="fill")

    with jax.debug_nans(True), jax.numpy_rank_promotion("raise"):  # noqa: FBT003
        for a, b in zip(tx.pad_static(16)(fn)(X[:3]), fn(jnp.asarray(X[:3])), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
