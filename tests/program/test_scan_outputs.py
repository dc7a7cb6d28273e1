"""What is told of the outputs that scans stack. Not here: the case that people reported (`tests/transforms/`)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax import export
from jax import lax
from jax.experimental import io_callback

import erythroxy_tx as tx
from erythroxy_tx.program.scans.flow import Flow
from erythroxy_tx.program.scans.outputs import stacks

T, D = 300, 1000  # 1.1 MiB; nothing here is computed
XS = jax.ShapeDtypeStruct((T, D), jnp.float32)
CARRY = jax.ShapeDtypeStruct((D,), jnp.float32)
XS_OF_TWO = jax.ShapeDtypeStruct((2, T, D), jnp.float32)
TABLE = jax.ShapeDtypeStruct((5000, D), jnp.float32)
STARTS = jax.ShapeDtypeStruct((T,), jnp.int32)


def told(fn: Callable[..., Any], *args: Any) -> list[str]:
    traced = jax.jit(fn).trace(*args)
    paths = ["result" + jtu.keystr(path) for path, _ in jtu.tree_flatten_with_path(traced.out_info)[0]]
    return stacks(Flow(traced.jaxpr), paths)


def of_step(step: Callable[..., Any], *args: Any) -> list[str]:
    """What is told of each output of a step, where all of them are results."""
    return [line.partition("result")[2] for line in told(lambda c, xs: lax.scan(step, c, xs)[1], *args)[1:]]


def of_reader(reader: Callable[..., Any], *, reverse: bool = False) -> str:
    """What is told of an output that is read so, and nowhere else."""

    def fn(c, xs):
        return reader(lax.scan(lambda c, x: (c + x, c * x), c, xs, reverse=reverse)[1])

    return told(fn, CARRY, XS)[1].partition("1.1 MiB")[2].removeprefix(": ")


def with_a_rule(fn):
    ruled = jax.custom_vjp(fn)
    ruled.defvjp(lambda xs: (fn(xs), xs), lambda xs, g: (xs * g,))
    return ruled


def test_a_result_is_told_by_its_path_and_the_rest_by_its_name_in_the_step() -> None:
    def fn(c, xs):
        _, y = lax.scan(lambda c, x: (c + x, {"a": c * x, "b": c / x, "few": x[0]}), c, xs)
        return {"kept": [y["a"]], "other": y["b"] + 1}

    head, *lines = told(fn, CARRY, XS)
    assert head.startswith(f"scan of 300 steps at {__file__}:")
    assert head.endswith(".fn) stacks 2.3 MiB")
    assert lines == ["    result['kept'][0], f32[300,1000], 1.1 MiB", "    y['b'], f32[300,1000], 1.1 MiB"]


def test_small_outputs_are_told_in_the_total_alone() -> None:
    half = jax.ShapeDtypeStruct((T, D // 2), jnp.float32)
    (line,) = told(lambda xs: lax.map(lambda x: (x * 2, x * 3), xs), half)
    assert line.endswith("stacks 1.1 MiB")
    assert told(lambda xs: lax.map(lambda x: x * 2, xs), half) == []
    assert told(lambda c: lax.fori_loop(0, 9, lambda i, c: c + i, c), TABLE) == []


def test_what_nothing_reads() -> None:
    assert of_reader(lambda y: y.shape[0]) == "never read: do not hand it out (jit leaves it out by itself)"
    assert of_reader(lambda y: (y.sum(1) * 0, 1)[1]).startswith("never read")


@pytest.mark.parametrize(
    "reader",
    [
        lambda y: y,
        lambda y: y.astype(jnp.int32),
        jax.jit(lambda y: y[3]),
        lambda y: lax.cond(y.sum(1)[0] > 3, lambda y: y * 2, lambda y: y, y),
        lambda y: lax.cond(y[0, 0] > 3, lambda: 1, lambda: 2),
        lambda y: lax.scan(lambda c, _: ((c[1], c[0] + y[0]), None), (y[1], y[1]), None, length=3)[0][0],
        lambda y: lax.scan(lambda c, y: (c + y, None), y[0], y)[0],
        lambda y: lax.while_loop(lambda c: c.sum() < y.sum(0)[0] + y[1, 1], lambda c: c + 1, jnp.zeros(2)),
        lambda y: jax.debug.print("{}", y),
        lambda y: lax.fori_loop(0, 3, lambda i, c: (c[1], c[0] + y), (y, y))[0],
        lambda y: jax.grad(jax.checkpoint(lambda w: (w * y).sum()))(2.0),
        lambda y: y.sum(1),
        lambda y: (y.sum(0), y[0]),
        lambda y: y[-2:].sum(0),
        lambda y: y - y.mean(0),
    ],
)
def test_what_is_read_as_a_whole_is_told_without_advice(reader: Any) -> None:
    assert of_reader(reader) == ""


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (lambda y: y.mean(0), "only its sum (or mean) over the steps is read: carry a running sum"),
        (lambda y: y.sum() / 2, "only its sum (or mean) over the steps is read: carry a running sum"),
        (lambda y: y.max(0), "only its maximum over the steps is read: carry a running maximum"),
        (lambda y: y[-1], "only its last element is read: carry it"),
        (lambda y: with_a_rule(lambda y: y)(y)[-1], "only its last element is read: carry it"),
        (
            jax.jit(lambda y: (y[T - 1], y.min((0, 1)))),
            "only its last element and its minimum over the steps are read: carry it; carry a running minimum",
        ),
    ],
)
def test_what_is_read_as_a_sum_or_a_last_element(reader: Any, said: str) -> None:
    assert of_reader(reader) == said


def test_a_mean_in_float32_of_a_narrow_output() -> None:
    def fn(c, xs):
        return lax.scan(lambda c, x: (c + x, jnp.tile(x, 2).astype(jnp.bfloat16)), c, xs)[1].mean(0)

    assert told(fn, CARRY, XS)[1].endswith(
        "bf16[300,2000], 1.1 MiB: only its sum (or mean) over the steps is read: carry a running sum"
    )


def test_the_last_element_of_a_scan_in_reverse_is_its_first() -> None:
    assert of_reader(lambda y: y[0], reverse=True).startswith("only its last element")
    assert of_reader(lambda y: y[-1], reverse=True) == ""


def test_the_last_carry_is_there_already() -> None:
    def fn(c, xs):
        return lax.scan(lambda c, x: (c + x, c + x * 1), c, xs)[1][-1], lax.scan(lambda c, x: (c + x,) * 2, c, xs)[1][
            -1
        ]

    told_of = [line.rpartition("read: ")[2] for line in told(fn, CARRY, XS) if line.startswith(" ")]
    assert told_of == ["carry it", "the final carry is that"]


def test_outputs_that_are_there_already() -> None:
    def step(c, x):
        after = c + x
        y = {
            "after": after,
            "again": after,
            "before": c,
            "constant": jnp.arange(float(D)),
            "input": jax.checkpoint(lambda x: x)(x),  # without this JAX itself hands out the inputs
        }
        return after, y

    assert of_step(step, CARRY, XS) == [
        "['after'], f32[300,1000], 1.1 MiB",
        "['again'], f32[300,1000], 1.1 MiB: the same as y['after']: hand out one of them",
        "['before'], f32[300,1000], 1.1 MiB: the carry before the step, y['after'] one step late: hand out one of them",
        "['constant'], f32[300,1000], 1.1 MiB: the same in every step: hand it out once, or use it where it is read",
        "['input'], f32[300,1000], 1.1 MiB: an input of the scan, unchanged: use that",
    ]


def test_what_differs_between_steps_is_not_called_the_same() -> None:
    assert of_step(lambda c, x: (c, io_callback(np.ones, CARRY, (D,), ordered=True)), CARRY, XS) == [
        ", f32[300,1000], 1.1 MiB"
    ]

    def outer(w, _):
        total, y = lax.scan(lambda c, x: (c + x.sum(), w), 0.0, jnp.ones((T, 2)))
        return w + total, y[3]

    (_, line, *_) = told(lambda w: lax.scan(outer, w, None, length=4), CARRY)  # w differs, but not in the inner scan
    assert line.endswith("1.1 MiB: the same in every step: hand it out once, or use it where it is read")


def test_an_unknown_number_of_steps_is_passed_over() -> None:
    (n,) = export.symbolic_shape("n")
    assert told(lambda xs: lax.map(lambda x: x * 2, xs), jax.ShapeDtypeStruct((n, D), jnp.float32)) == []


def test_windows_and_rows_of_a_table() -> None:
    def fn(table, starts, pairs):
        def step(c, start_and_pair):
            start, pair = start_and_pair
            y = {
                "row": table[start],
                "rows": c[1][pair],
                "window": lax.dynamic_slice_in_dim(table, start, 16),
                "windows": jax.vmap(lambda j: lax.dynamic_slice(table, (j, 0), (4, D)))(pair),
                "part": lax.dynamic_slice(table, (start, 0), (4, D // 2)),
                "changes": lax.dynamic_slice_in_dim(table * c[0], start, 16),
            }
            return (c[0] + 1, c[1]), y

        return lax.scan(step, (0.0, table), (starts, pairs))[1]

    lines = {
        line.strip()[8:].partition("'")[0]: line
        for line in told(fn, TABLE, STARTS, jax.ShapeDtypeStruct((T, 2), jnp.int32))[1:]
    }
    of_x = "of x, f32[5000,1000], which does not change: hand out the starts"
    assert lines["row"].endswith(f"1.1 MiB: rows {of_x}, 1.2 KiB; x[starts] rebuilds it")
    assert lines["rows"].endswith(f"2.3 MiB: rows {of_x}, 2.3 KiB; x[starts] rebuilds it")
    assert lines["window"].endswith(f"18.3 MiB: a window {of_x}, 1.2 KiB; tx.windows(x, starts, 16) rebuilds it")
    assert lines["windows"].endswith(f"9.2 MiB: a window {of_x}, 4.7 KiB; tx.windows(x, starts, 4) rebuilds it")
    assert lines["part"].endswith(f"2.3 MiB: a window {of_x}, 1.2 KiB; slice again where it is read")
    assert lines["changes"].endswith("18.3 MiB")


def test_elements_that_are_no_larger_than_their_index_are_left() -> None:
    table, picks = jax.ShapeDtypeStruct((5000,), jnp.float32), jax.ShapeDtypeStruct((T, D), jnp.int32)
    assert of_step(lambda c, pick: (c, c[pick]), table, picks) == [", f32[300,1000], 1.1 MiB"]


@pytest.mark.parametrize(
    "around",
    [
        jax.jit,
        jax.checkpoint,
        lambda fn: lambda xs: lax.cond(xs[0, 0] > 0, fn, lambda xs: 0.0, xs),
        lambda fn: lambda xs: lax.while_loop(lambda c: c < 3, lambda c: c + fn(xs), 0.0),
        lambda fn: lambda xs: lax.map(lambda i: fn(xs + i), jnp.arange(3.0)),
        lambda fn: lambda xs: lax.scan(lambda c, _: ((c[1], fn(xs)), None), (0.0, 0.0), None, length=3)[0][0],
        lambda fn: lambda xs: jax.lax.custom_linear_solve(lambda x: x, fn(xs), lambda _, b: b),
        with_a_rule,
        lambda fn: lambda xs: jax.vmap(fn)(xs[None])[0],
        tx.checkpointed_scan,
    ],
)
def test_a_scan_is_found_at_any_depth(around: Any) -> None:
    def fn(xs):
        return lax.map(lambda x: x * 2, xs).sum((0, 1))

    head, line = told(around(fn), XS)
    assert ".fn) stacks 1.1 MiB" in head
    assert line.endswith("only its sum (or mean) over the steps is read: carry a running sum")


def test_what_a_nested_scan_hands_out_counts_in_both() -> None:
    def fn(xs):
        def outer(c, _):
            return c + 1, lax.map(lambda x: x * c, xs)

        return lax.scan(outer, 1.0, None, length=5)[1][-1]

    inner_head, inner, outer_head, outer = told(fn, XS)
    assert "scan of 300 steps" in inner_head
    assert inner.endswith("f32[300,1000], 1.1 MiB")
    assert "scan of 5 steps" in outer_head
    assert outer.endswith("f32[5,300,1000], 5.7 MiB: only its last element is read: carry it")


def test_the_tape_of_a_gradient_is_told_without_advice() -> None:
    def loss(w, xs):
        return lax.scan(lambda c, x: (jnp.tanh(c * w + x), c), w, xs)[1].sum()

    head, *lines = told(jax.grad(loss), CARRY, XS)
    assert "loss) stacks" in head
    assert set(lines) == {"    f32[300,1000], 1.1 MiB"}
    (_, line) = told(
        jax.vmap(lambda w, xs: lax.scan(lambda c, x: (c, c + x), w, xs)[1][-1], (None, 0)), CARRY, XS_OF_TWO
    )
    assert line == "    f32[300,2,1000], 2.3 MiB: only its last element is read: carry it"


def test_a_function_that_is_called_twice_is_told_once() -> None:
    fn = jax.jit(lambda xs: lax.map(lambda x: x * 2, xs))
    assert len(told(lambda xs: fn(xs)[2] + fn(xs)[3], XS)) == 2


# ---------------------------------------------------------------------- in what explain says


def total(xs, n):
    return lax.map(lambda x: x * n, xs).sum(0)


@pytest.mark.parametrize("fn", [total, jax.jit(total), jax.jit(total, static_argnums=1), tx.no_recompile(total)])
def test_explain_looks_at_any_callable(fn: Any) -> None:
    first, *_, head, line, promise = tx.explain(fn, XS, 3).lines
    assert first.startswith("total, ")
    assert head.endswith("(total) stacks 1.1 MiB")
    assert line == "    y, f32[300,1000], 1.1 MiB: only its sum (or mean) over the steps is read: carry a running sum"
    assert promise == "result: Bitwise()"


def test_explain_says_whose_figures_they_are() -> None:
    xs = jnp.ones((T, D))
    lines = tx.explain(tx.chunked(lax.map, size=100)(lambda xs: lax.map(lambda x: x * 2, xs)), xs).lines
    assert [line for line in lines if line.startswith(f"undecorated: scan of 300 steps at {__file__}")]
    assert "    result, f32[300,1000], 1.1 MiB" in lines


def test_explain_says_what_it_skipped() -> None:
    def fn(x):
        return x * 2 if x.sum() > 3 else x

    (_, skipped) = tx.explain(fn, jnp.ones(3)).lines
    assert skipped.startswith("neither its scans nor its contract are told: it cannot be traced")
    assert skipped.endswith("(TracerBoolConversionError)")
    assert tx.explain(lambda x, n: jnp.zeros(n) + x if n > 2 else x, 1.0, 3).lines[1:] == ("result: Bitwise()",)
    for decorate in (tx.checkpointed_scan, tx.no_recompile):
        with pytest.raises(jax.errors.TracerBoolConversionError):
            tx.explain(decorate(fn), jnp.ones(3))
    with pytest.raises(TypeError, match="incompatible shapes"):
        tx.explain(jnp.add, jnp.ones(3), jnp.ones(2))
