"""What is told of the carries that a step copies. Not here: the case that people reported (`tests/transforms/`)."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import erythroxy_tx as tx
from erythroxy_tx.program.scans.copies import copied
from erythroxy_tx.program.scans.flow import Flow
from erythroxy_tx.program.scans.listing import loops

N = 300_000  # 1.1 MiB; nothing here is run
BUFFER = jax.ShapeDtypeStruct((N,), jnp.float32)
STEPS = jax.ShapeDtypeStruct((8,), jnp.int32)
WITH_BARRIER = jax.__version_info__ >= (0, 11, 2)

barrier = lax.optimization_barrier


def told(fn: Callable[..., Any], *args: Any) -> list[str]:
    traced = jax.jit(fn).trace(*args)
    return copied(Flow(traced.jaxpr), traced.lower().compile().as_text())


def of_step(step: Callable[..., Any], carry: Any = BUFFER) -> list[str]:
    """What is told of each carry, and that no copy of that size is missed."""
    traced = jax.jit(lambda c, i: lax.scan(step, c, i)).trace(carry, STEPS)
    text = traced.lower().compile().as_text()
    head, *lines = copied(Flow(traced.jaxpr), text) or [""]
    inside = text.partition("\nENTRY")[0]
    assert sum(int(n) for n in re.findall(r": (\d+) cop", "\n".join(lines))) == len(
        re.findall(rf"f32\[{N}\]\S* copy\(", inside)
    )
    assert not lines or head.startswith(f"scan of 8 steps at {__file__}:")
    return [line.removeprefix("    ").replace(", f32[300000], 1.1 MiB", "") for line in lines]


def kept_value(b: Any, i: Any) -> Any:
    v = b[i]
    return b.at[i].set(v * 2), v


def after_the_write(b: Any, i: Any) -> Any:
    return b.at[i].set(1.0), b[i]


def between_writes(b: Any, i: Any) -> Any:
    b = b.at[i].add(1.0)
    v = b[i + 1]
    return lax.dynamic_update_slice(b, v[None] * 2, (i + 2,)), v


def under_a_cond(b: Any, i: Any) -> Any:
    v = b[i]
    return lax.cond(v > 0, lambda b: b.at[i].set(-v), lambda b: b, b), v


@pytest.mark.parametrize(
    ("step", "count"), [(kept_value, 2), (after_the_write, 2), (between_writes, 2), (under_a_cond, 3)]
)
def test_a_value_that_is_read_and_kept(step: Any, count: int) -> None:
    (line,) = of_step(step)
    assert line.startswith(
        f"carry b: {count} copies in each step, since the step keeps a value that it read before the write: "
    )
    assert "jax.lax.optimization_barrier((carry, value)) between read and write" in line
    assert ("from jax 0.11.2 on" in line) != WITH_BARRIER


def with_barrier(b: Any, i: Any) -> Any:
    b, v = barrier((b, b[i]))
    return b.at[i].set(v * 2), v


def with_barrier_between(b: Any, i: Any) -> Any:
    b = b.at[i].add(1.0)
    b, v = barrier((b, b[i + 1]))
    return lax.dynamic_update_slice(b, v[None] * 2, (i + 2,)), v


def with_barrier_under_a_cond(b: Any, i: Any) -> Any:
    b, v = barrier((b, b[i]))
    return lax.cond(v > 0, lambda b: b.at[i].set(-v), lambda b: b, b), v


@pytest.mark.parametrize("step", [with_barrier, with_barrier_between, with_barrier_under_a_cond])
def test_the_barrier_that_is_advised_spares_the_copies(step: Any) -> None:
    assert bool(of_step(step)) != WITH_BARRIER


@pytest.mark.parametrize(
    "step",
    [
        lambda b, i: (b.at[i].set(0.5), None),
        lambda b, i: (b.at[i].multiply(0.5), None),
        lambda b, i: (jnp.tanh(b), None),
        lambda b, i: (b, b[i]),
    ],
)
def test_what_is_written_in_place_is_not_told(step: Any) -> None:
    assert of_step(step) == []


def test_a_carry_that_is_handed_on() -> None:
    def swap(state, i):
        return {"a": state["b"], "b": state["a"]}, None

    assert of_step(swap, {"a": BUFFER, "b": BUFFER}) == [
        "carry state['a']: 2 copies in each step, since the step hands it on as carry state['b']",
        "carry state['b']: 2 copies in each step, since the step hands it on as carry state['a']",
    ]
    assert of_step(lambda c, i: ((jnp.tanh(c[0]), c[0]), None), (BUFFER, BUFFER)) == [
        "carry c[0]: 1 copy in each step, since the step hands it on as carry c[1]"
    ]
    assert of_step(lambda b, i: (b.at[i].set(1.0), b)) == [
        "carry b: 2 copies in each step, since the step hands it out as it was"
    ]


def test_which_of_several_carries_is_told() -> None:
    def step(c, i):
        count, still, plain, read = c
        v = read[i] + still[i]
        return (count + 1, still, plain.at[i].set(1.0), read.at[i].set(v)), v

    (line,) = of_step(step, (0, BUFFER, BUFFER, BUFFER))
    assert line.startswith("carry c[3]: 2 copies")


def test_a_carry_that_xla_drops_or_keeps_is_not_taken_for_another() -> None:
    def step(c, i, read):
        b, v = kept_value(c[1], i)
        return (c[0] * 1.0, b), v + c[0][i] * read

    for read in (0, 1):  # one of the two is copied: which, the text does not say
        assert told(lambda c, i: lax.scan(lambda c, i: step(c, i, read), c, i), (BUFFER, BUFFER), STEPS) == []  # noqa: B023


def test_a_barrier_that_does_not_help_is_not_advised() -> None:
    def step(b, i):
        v = b[i]
        return barrier((b.at[i].set(v * 2), v))

    (line,) = of_step(step)
    assert line.startswith("carry b: 2 copies in each step, since the step keeps a value that it read before the write")
    assert ("optimization_barrier" in line) != WITH_BARRIER


def test_a_copy_without_a_known_reason() -> None:
    def step(c, i):
        *few, b = c
        return (*(x * 2 for x in few), jnp.roll(b, 1)), None

    assert of_step(step, (*jnp.ones((4, 3)), BUFFER)) == ["carry c[4]: 1 copy in each step"]


def test_several_steps_at_once_small_carries_and_other_loops() -> None:
    (_, line) = told(lambda b, i: lax.scan(kept_value, b, i, unroll=2), BUFFER, STEPS)
    assert re.search(r"carry b, f32\[300000\], 1.1 MiB: \d copies in 2 steps", line)
    assert told(lambda b, i: lax.scan(kept_value, b, i), jax.ShapeDtypeStruct((1000,), jnp.float32), STEPS) == []
    whiles = lambda b, i: lax.while_loop(lambda c: c[0].sum() < 9, lambda c: kept_value(c[0], i[0]), (b, 0.0))  # noqa: E731
    assert told(whiles, BUFFER, STEPS) == []


def test_integers_in_a_scan_in_a_scan() -> None:
    def fn(b, i):
        return lax.scan(lambda b, _: lax.scan(kept_value, b, i), b, None, length=3)

    lines = told(lambda b, i: fn(b.astype(jnp.int32), i), BUFFER, STEPS)
    assert [line for line in lines if line.startswith("scan of 8 steps")]
    assert [
        line for line in lines if line.startswith("    carry b, i32[300000], 1.1 MiB: 2 copies in each step, since")
    ]


def test_a_text_that_cannot_be_read_says_nothing() -> None:
    traced = jax.jit(lambda b, i: lax.scan(kept_value, b, i)).trace(BUFFER, STEPS)
    flow, text = Flow(traced.jaxpr), traced.lower().compile().as_text()
    assert len(copied(flow, text)) == 2
    for broken in (
        "",
        "not a program",
        text[: len(text) // 2],
        text.replace("index=", "at="),
        text.replace("stack_frame_id", "frame"),
        text.replace("StackFrames", "Frames"),
        text.replace("body=", "step="),
        text.replace(" copy(", " clone("),
        re.sub(r"parameter\(\d\)", "parameter()", text),
        re.sub(r"\bline=\d+", "line=1", text),
        re.sub(r"\bcolumn=\d+", "column=1", text),
    ):
        assert copied(flow, broken) == []


def test_a_loop_of_the_text() -> None:
    traced = jax.jit(lambda b, i: lax.scan(under_a_cond, b, i)).trace(BUFFER, STEPS)
    (loop,) = loops(traced.lower().compile().as_text())
    k = loop.shapes.index(f"f32[{N}]")
    assert loop.copies == {k: 3, **{other: n for other, n in loop.copies.items() if other != k}}
    assert not loop.kept[k]
    assert loop.kept[loop.shapes.index("s32[8]")]
    assert loop.place.startswith(f"{__file__}:")


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, tx.checkpointed_scan, tx.no_recompile, tx.vram_resident])
def test_explain_tells_it_of_any_callable(around: Any) -> None:
    lines = tx.explain(around(lambda b, i: lax.scan(kept_value, b, i)), BUFFER, STEPS).lines
    at = next(k for k, line in enumerate(lines) if line.startswith("scan of 8 steps"))
    assert lines[at].endswith("copies what it carries")
    assert lines[at + 1].startswith("    carry b, f32[300000], 1.1 MiB: 2 copies in each step, since")
    promise = "AsAccurate(k=4)" if around is tx.checkpointed_scan else "Bitwise()"
    assert lines[at + 2] == f"result[0]: {promise}"


def test_two_scans_at_one_place() -> None:
    def run(step, b, i):
        return lax.scan(step, b, i)

    lines = told(lambda b, i: (run(kept_value, b, i), run(lambda b, i: (b.at[i].set(1.0), b), b, i)), BUFFER, STEPS)
    assert lines[1:] == ["    carry b, f32[300000], 1.1 MiB: 2 copies in each step"]  # whose reason is not known
    other = lambda c, i: kept_value(c, i)  # noqa: E731, PLW0108  # its carry has another name
    assert told(lambda b, i: (run(kept_value, b, i), run(other, b, i)), BUFFER, STEPS) == []
