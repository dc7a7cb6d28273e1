"""`vram_resident`: what is copied to the device and when, what is refused, and what comes back.

Copies are counted at the one place that makes them; that there are no others is what `jax.transfer_guard` says.
"""

import contextlib
import functools
import gc
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.core.compare import compare

BIG = np.ones((600, 600), np.float32)  # 1.4 MiB, read by functions below


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    tx.clear()
    yield
    tx.clear()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shape of each copy to the device."""
    made: list[tuple[int, ...]] = []
    put = jax.device_put

    def noted(value: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(np.shape(value))
        return put(value, *args, **kwargs)

    monkeypatch.setattr(jax, "device_put", noted)
    return made


@contextlib.contextmanager
def no_copies(copies: list[tuple[int, ...]]) -> Iterator[None]:
    before = len(copies)
    with jax.transfer_guard_host_to_device("disallow"):
        yield
    assert copies[before:] == []


def assert_same(reference: Any, candidate: Any) -> None:
    found = compare(reference, candidate)
    assert found.ok, str(found)


def base_of(rows: int = 50) -> np.ndarray:
    return np.arange(rows * 4, dtype=np.float32).reshape(rows, 4).copy()


# ---------------------------------------------------------------------- one copy


def test_one_copy_for_ten_calls(copies: list) -> None:
    base = base_of()
    f = tx.vram_resident(lambda base, rows, scale: base[rows].sum(0) * scale)
    rows = np.arange(10)
    expected = f(base, rows, 2.0)
    assert sorted(copies) == [(), (10,), (50, 4)]
    with no_copies(copies):
        for _ in range(9):
            assert_same(expected, f(base, rows, 2.0))
    assert_same(jnp.asarray(base[rows].sum(0) * np.float32(2)), expected)
    assert isinstance(expected, jax.Array)


def test_each_number_is_copied_once(copies: list) -> None:
    f = tx.vram_resident(lambda x, s: x * s)
    x = jnp.ones(3)
    for scalar in (2.0, 2, True, np.float32(2), 2j, 0.0, -0.0, float("nan")):
        before = len(copies)
        f(x, scalar)
        assert len(copies) == before + 1
        with no_copies(copies):
            f(x, scalar)
    assert np.signbit(np.asarray(f(1.0, -0.0)))
    assert not np.signbit(np.asarray(f(1.0, 0.0)))


@pytest.mark.parametrize("scalar", [2.0, 2, True, 2j, np.float32(2), np.float64(2), np.int32(2), np.bool_(1)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_numbers_have_the_types_that_they_have_under_jit(scalar: Any, dtype: str) -> None:
    fn = lambda x, s: (x * s, s)  # noqa: E731
    x = jnp.ones(3, dtype)
    assert_same(jax.jit(fn)(x, scalar), tx.vram_resident(fn)(x, scalar))
    assert_same(jax.jit(fn)(x, scalar), tx.vram_resident(fn)(np.asarray(x), scalar))


def test_bf16_stays_bf16() -> None:
    f = tx.vram_resident(lambda x, s: x * s)
    assert f(np.ones(3, jnp.bfloat16), 2.0).dtype == jnp.bfloat16
    assert f(np.ones(3, jnp.bfloat16), 2.0).weak_type is False


def test_trees_keywords_and_static_values(copies: list) -> None:
    base = base_of()

    def fn(tree: dict[str, Any], *more: Any, mode: str, **named: Any) -> Any:
        total = tree["a"].sum() + tree["b"][0] * tree["b"][1].sum()
        return {"total": total * {"twice": 2}[mode], "more": [m + 1 for m in more], "named": named["x"].max()}

    f = tx.vram_resident(fn)
    args = ({"a": base, "b": (3, base_of(7))}, base, 5.0)
    expected = jax.jit(fn, static_argnames="mode")(*args, mode="twice", x=base)
    assert_same(expected, f(*args, mode="twice", x=base))
    assert sorted(copies) == [(), (), (7, 4), (50, 4)]  # the base once, wherever it stands
    with no_copies(copies):
        assert_same(expected, f(*args, mode="twice", x=base))


def test_static_argnames_keep_numbers_static() -> None:
    f = tx.vram_resident(lambda x, n: x.reshape(n, -1), static_argnames="n")
    base = base_of()
    assert f(base, 4).shape == (4, 50)
    assert f(base, n=8).shape == (8, 25)
    assert f(jnp.asarray(base), 4).shape == (4, 50)


def test_functions_share_a_copy(copies: list) -> None:
    base = base_of()
    one, other = tx.vram_resident(lambda x: x.sum()), tx.vram_resident(lambda x: x.max())
    one(base)
    other(base)
    assert copies == [(50, 4)]
    tx.vram_resident(lambda x: x.min(), device=jax.devices()[1])(base)
    assert copies == [(50, 4), (50, 4)]  # another device has its own


class Regression:
    """Holds its weights in numpy, as ordinary code does."""

    def __init__(self) -> None:
        self.weights = np.ones((4, 2), np.float32)
        self.scale = 2.0

    @tx.vram_resident
    def predict(self, x: Any) -> Any:
        return x @ self.weights * self.scale

    def plain(self, x: Any) -> Any:
        return x @ self.weights * self.scale


class Affine(eqx.Module):
    weights: Any

    def __call__(self, x: Any) -> Any:
        return x @ self.weights


def test_attributes_are_copied_once_too(copies: list) -> None:
    base, model = base_of(), Regression()
    kept, weights = tx.vram_resident(model.plain), np.ones((4, 2), np.float32)
    for call in (
        lambda: model.predict(base),
        lambda: kept(base),
        functools.partial(tx.vram_resident(Affine(weights)), base),
        functools.partial(tx.vram_resident(functools.partial(lambda w, x: x @ w, weights)), base),
        functools.partial(tx.vram_resident(tx.chunked(lax.map, 3, out="rows")(Affine(weights))), base),
        functools.partial(tx.vram_resident(Affine(weights)), jnp.asarray(base)),
    ):
        expected = call()
        with no_copies(copies):
            assert_same(expected, call())
    model.weights = np.full((4, 2), 3, np.float32)
    model.scale = 1.0
    for found in (model.predict(base), kept(base)):
        assert_same(jnp.asarray(base @ model.weights), found)
    assert any("weights" in entry.name for entry in kept.resident())
    with pytest.raises(ValueError, match="read-only"):
        model.weights[0] = 0


def test_a_freed_array_is_dropped() -> None:
    f = tx.vram_resident(lambda x: x.sum())
    for k in range(20):  # memory, and so identities, are used again
        assert f(np.full(1000, k, np.float32)) == 1000 * k
    gc.collect()
    assert f.resident() == []


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(base_of()),
        base_of()[::2, 1:],
        base_of()[::-1],
        np.broadcast_to(np.float32(3), (5, 2)),
        np.float32(3) * np.ones(()),
        np.zeros((0, 3), np.float32),
        np.arange(5, dtype=np.int64),
        np.arange(5.0),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.arange(3, dtype=np.float16),
        np.arange(3).astype(jnp.bfloat16),
        np.arange(3, dtype=np.uint8),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_any_layout_and_dtype(array: np.ndarray) -> None:
    assert_same(jax.jit(lambda x: x)(array), tx.vram_resident(lambda x: x)(array))


# ---------------------------------------------------------------------- never stale


def test_a_resident_array_is_read_only_and_told_when_it_changed() -> None:
    f = tx.vram_resident(lambda x: x.sum())
    base = base_of()
    f(base)
    with pytest.raises(ValueError, match="read-only"):
        base[0] = 7
    base.flags.writeable = True
    base[0] = 7
    with pytest.raises(
        tx.StaleArrayError, match=r"tx\.vram_resident\(.*lambda>\) got x: f32\[50,4\], which was made writable"
    ):
        f(base)
    f.replace(base, base)
    assert f(base) == base.sum()


def test_a_view_that_writes_is_seen() -> None:
    f = tx.vram_resident(lambda x: x.sum())
    base = base_of()
    view = base[3:5]
    f(base)
    assert f.resident()[0].checked
    view[0] = 1e6
    with pytest.raises(tx.StaleArrayError, match="changed through a view"):
        f(base)


# ---------------------------------------------------------------------- room


def test_budget_drops_the_least_recently_used(copies: list) -> None:
    f = tx.vram_resident(lambda *xs: sum(x.sum() for x in xs), budget=5000)
    a, b, c, d = (np.full(500, k, np.float32) for k in range(4))  # 2000 bytes each
    on_device = lambda: [float(entry.value[0]) for entry in f.resident()]  # noqa: E731
    f(a)
    f(b)
    assert on_device() == [0, 1]
    f(a)
    assert on_device() == [1, 0]
    f(c)
    assert on_device() == [0, 2]
    assert len(copies) == 3
    f(a, c)
    assert len(copies) == 3
    with pytest.raises(tx.BudgetError) as caught:
        f(a, b, d)
    for part in ("budget=4.9 KiB", "xs[0]: f32[500]", "xs[2]: f32[500]", "5.9 KiB", "Fix: a larger budget"):
        assert part in str(caught.value)
    assert on_device() == [0, 2]  # refused before anything moved
    assert f(b, d) == 2000
    assert sum(entry.nbytes for entry in f.resident()) <= 5000


def test_evict() -> None:
    f = tx.vram_resident(lambda a, b: a.sum() + b.sum())
    a, b = base_of(), base_of(20)
    f(a, b)
    f.evict(a)
    assert [entry.name for entry in f.resident()] == ["b"]
    f(a, b)
    f.evict()
    assert f.resident() == []
    a[0] = b[0] = 5
    assert f(a, b) == a.sum() + b.sum()


def test_replace(copies: list) -> None:
    f = tx.vram_resident(lambda base: base.sum())
    old, new = base_of(), base_of() + 1
    f(old)
    f.replace(old, new)
    assert [entry.nbytes for entry in f.resident()] == [old.nbytes]
    old[0] = 3  # free again
    before = len(copies)
    assert f(new) == new.sum()
    assert len(copies) == before
    with pytest.raises(ValueError, match="Expected the same shape and dtype"):
        f.replace(new, base_of(7))
    with pytest.raises(ValueError, match="which is not on the device"):
        f.replace(old, new)


# ---------------------------------------------------------------------- what comes back


def test_max_fetch_returns_numpy_and_refuses_more() -> None:
    f = tx.vram_resident(lambda x: {"a": x * 2, "b": (x.sum(), None)}, max_fetch=100)
    small = f(np.ones(5, np.float32))
    assert type(small["a"]) is np.ndarray
    assert small["a"].tolist() == [2] * 5
    assert small["b"][0] == 5
    assert small["b"][1] is None
    with pytest.raises(tx.BudgetError) as caught:
        f(np.ones(500, np.float32))
    for part in ("tx.vram_resident(", "a result of 2.0 KiB (f32[500], f32[])", "max_fetch=100 B", "`result`"):
        assert part in str(caught.value)
    kept: Any = caught.value.result
    assert isinstance(kept["a"], jax.Array)
    assert kept["a"].shape == (500,)
    exact = tx.vram_resident(lambda x: x, max_fetch="20B")
    assert exact(np.ones(5, np.float32)).shape == (5,)
    keys, data = tx.vram_resident(lambda key: (key, jax.random.key_data(key)), max_fetch=100)(jax.random.key(0))
    assert isinstance(keys, jax.Array)
    assert type(data) is np.ndarray


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("inside", ["jit", "grad", "vmap", "scan", "eval_shape", "jit of another"])
def test_nothing_is_resident_inside_a_trace(inside: str) -> None:
    f = tx.vram_resident(lambda base, s: (base * s).sum())
    base = base_of()
    calls: dict[str, Callable[[], Any]] = {
        "jit": lambda: jax.jit(f)(base, 2.0),
        "grad": lambda: jax.grad(f, 1)(base, 2.0),
        "vmap": lambda: jax.vmap(f, (None, 0))(base, jnp.ones(3)),
        "scan": lambda: lax.scan(lambda c, _: (f(base, c), None), 1.0, None, length=2),
        "eval_shape": lambda: jax.eval_shape(f, base, 2.0),
        "jit of another": lambda: jax.jit(lambda s: f(base, 2.0) + s)(1.0),  # no tracer among its arguments
    }
    with pytest.raises(tx.TransformOrderError, match="called inside a trace") as caught:
        calls[inside]()
    assert "Fix: put it outside" in str(caught.value)
    assert f(base, 2.0) == 2 * base.sum()


def test_around_what_differentiates() -> None:
    f = tx.vram_resident(jax.grad(lambda w, x: (x @ w).sum()))
    assert f(np.ones(4, np.float32), base_of()).tolist() == base_of().sum(0).tolist()
    with pytest.raises(tx.TransformOrderError, match=r"tx\.chunked is wrapped around tx\.vram_resident"):
        tx.chunked(lax.map, 2, out="rows")(tx.vram_resident(lambda x: x))


def capture_closure() -> Callable[[Any], Any]:
    held = np.ones((600, 600), np.float32)
    return lambda x: (x + held)[0, 0]


def read_big(x: Any) -> Any:
    return (x + BIG)[0, 0]


def capture_nested() -> Callable[[Any], Any]:
    held = np.ones((600, 600), np.float32)
    inner = jax.jit(lambda x: (x + held)[0, 0])
    return lambda x: inner(x) * 1


def capture_in_scan() -> Callable[[Any], Any]:
    held = np.ones((600, 600), np.float32)
    return lambda x: lax.scan(lambda c, _: (c + (c + held).sum(), None), x, None, length=3)[0]


HELD = {name: np.ones((600, 600), np.float32) for name in ("table", "default")}


class Holder:
    table = np.ones((600, 600), np.float32)


CAPTURES: dict[str, tuple[Callable[..., Any], str]] = {
    "global": (read_big, "BIG"),
    "called": (lambda x: read_big(x) * 1, "BIG"),
    "closure": (capture_closure(), "held"),
    "default": (lambda x, table=BIG: (x + table)[0, 0], "table"),
    "keyword default": (lambda x, *, table=HELD["default"]: (x + table)[0, 0], "table"),
    "nested jit": (capture_nested(), "held"),
    "scan": (capture_in_scan(), "held"),
    "converted": (lambda x: (x + jnp.asarray(BIG))[0, 0], "BIG"),
    "attribute": (lambda x: (x + Holder.table)[0, 0], ""),
    "in a dict": (lambda x: (x + HELD["table"])[0, 0], ""),
}


@pytest.mark.parametrize("how", CAPTURES)
@pytest.mark.parametrize("chunked", [False, True], ids=["alone", "chunked"])
def test_large_captures_are_named(how: str, chunked: bool) -> None:
    fn, name = CAPTURES[how]
    f = tx.vram_resident(tx.chunked(lax.map, 2, in_axes=0, out="rows")(lambda x: x + fn(x.max())) if chunked else fn)
    with pytest.raises(ValueError, match=r"captures .*f32\[600,600\] \(1.4 MiB\)") as caught:
        f(np.ones(4, np.float32) if chunked else 1.0)
    assert f"captures {name}" in str(caught.value)
    assert "Fix: pass it as an argument" in str(caught.value)


def test_small_captures_and_device_arrays_are_allowed() -> None:
    small, large = np.ones(200_000, np.float32), jnp.asarray(BIG)
    assert tx.vram_resident(lambda x: (x + small).sum())(1.0) == 400_000
    assert tx.vram_resident(lambda x: (x + large)[0, 0])(1.0) == 2


def test_the_body_is_one_program_without_transfers() -> None:
    """What uploads a scalar for each operation outside jit uploads nothing here."""
    f = tx.vram_resident(lambda a: (a[1:, :2] + 1.0, a[3], jnp.where(a > 0, a, 0.0), jnp.zeros(3), a.at[0].set(9.0)))
    base = base_of()
    f(base)
    with jax.transfer_guard("disallow"):
        f(base)
    with pytest.raises(jax.errors.TracerArrayConversionError):
        tx.vram_resident(lambda x: np.asarray(x) * 2)(base)


def test_copies_while_it_is_traced_are_refused() -> None:
    """What runs at compile time would be copied again at each compilation, and unseen."""

    def eager(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            return x + jnp.asarray(np.ones(3, np.float32))

    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        tx.vram_resident(lambda x: x + eager(1.0))(2.0)


@pytest.mark.parametrize(
    "value", [np.int64(2**40), np.array([0, 2**31]), np.array([-(2**31) - 1]), np.array([2**32], np.uint64)]
)
def test_integers_that_would_wrap(value: Any) -> None:
    f = tx.vram_resident(lambda x: x)
    with pytest.raises(OverflowError, match=r"do not fit u?int32: on the device they would wrap"):
        f(value)
    assert f(np.array([2**31 - 1, -(2**31)])).tolist() == [2**31 - 1, -(2**31)]
    with pytest.raises(OverflowError):
        f(2**40)


@pytest.mark.parametrize(
    "array",
    [
        np.ma.masked_array(np.ones(3), [0, 1, 0]),
        np.array([1, None]),
        np.array(["a"]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(2, [("a", "f4")]),
    ],
    ids=lambda a: str(a.dtype),
)
def test_arrays_without_a_device_form(array: Any) -> None:
    with pytest.raises(TypeError, match=r"got x: .* which has no device form"):
        tx.vram_resident(lambda x: x)(array)


def test_parameters() -> None:
    for name in ("max_fetch", "budget"):
        for value in (0, -1, True, "much", 1.5):
            with pytest.raises(ValueError, match=rf"tx\.vram_resident got {name}={value!r}"):
                tx.vram_resident(lambda x: x, **{name: value})
    with pytest.raises(TypeError, match="device='cpu'"):
        tx.vram_resident(lambda x: x, device="cpu")
    with pytest.raises(TypeError, match="got int in place of a function"):
        tx.vram_resident(3)


# ---------------------------------------------------------------------- the device


def test_device(copies: list) -> None:
    other, base = jax.devices()[1], base_of()
    for device in (other, jax.sharding.SingleDeviceSharding(other)):
        f = tx.vram_resident(lambda x, s: x * s, device=device)
        assert f(base, 2.0).devices() == {other}
        with no_copies(copies):
            f(base, 2.0)
        assert_same(jnp.asarray(base * 2), jax.device_put(f(jax.device_put(base, other), 2.0), jax.devices()[0]))
        with pytest.raises(ValueError, match=r"got x: f32\[50,4\] on .*Fix: jax.device_put it there once"):
            f(jnp.asarray(base), 2.0)


def test_lower_and_the_parameters_in_use() -> None:
    @tx.vram_resident(max_fetch="1MiB", budget="1GiB")
    def mean_of(base: Any, rows: Any) -> Any:
        """The mean of some rows."""
        return base[rows].mean(0)

    assert mean_of.__doc__ == "The mean of some rows."
    found = mean_of(base_of(), np.arange(3))
    assert type(found) is np.ndarray
    text = mean_of.lower(jax.ShapeDtypeStruct((50, 4), "float32"), jax.ShapeDtypeStruct((3,), "int32")).as_text()
    assert "50x4xf32" in text
