"""`compiles`: what is counted, listed and left out."""

import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx
from tests.testing.of_pytest import ROOT


def test_the_stages_are_counted() -> None:
    f, x = jax.jit(lambda x: x * 17), np.ones(3, np.float32)
    with tx.compiles() as seen:
        f(x)
        f(x)
    assert (seen.traces, seen.lowerings, seen.backend_compiles, seen.cache_hits) == (1, 1, 1, 0)
    assert [event.stage for event in seen.events] == ["trace", "lowering", "compile"]
    assert {event.name for event in seen.events} == {"<lambda>"}
    assert all(Path(event.line.partition(":")[0]) == Path(__file__) for event in seen.events)
    assert 0 < seen.seconds == pytest.approx(sum(event.seconds for event in seen.events))


def test_it_records_until_it_is_stopped() -> None:
    seen = tx.compiles()
    jax.jit(lambda x: x * 18)(1.0)
    seen.stop()
    jax.jit(lambda x: x * 19)(1.0)
    assert seen.traces == 1
    seen.start()
    jax.jit(lambda x: x * 20)(1.0)
    assert seen.traces == 2
    seen.clear()
    assert seen.traces == 0


def test_a_recorder_that_is_gone_is_told_nothing() -> None:
    from erythroxy_tx.compiling.events import LISTENERS

    before = len(LISTENERS)
    seen = tx.compiles()
    assert len(LISTENERS) == before + 1
    del seen
    assert len(LISTENERS) == before


def test_a_compile_without_a_trace_and_a_trace_without_a_compile() -> None:
    f, x, y = jax.jit(lambda x: x * 21), np.ones(3, np.float32), np.ones(4, np.float32)
    f(x)
    with tx.compiles() as compiled:
        f(jax.device_put(x, jax.devices()[0]))
    assert (compiled.traces, compiled.backend_compiles) == (0, 1)
    with tx.compiles() as traced:
        jax.eval_shape(f, y)
    assert (traced.traces, traced.lowerings, traced.backend_compiles) == (1, 0, 0)


def test_every_thread_is_heard() -> None:
    with tx.compiles() as seen:
        thread = threading.Thread(target=lambda: jax.jit(lambda x: x * 22)(1.0), name="worker")
        thread.start()
        thread.join()
    assert {event.thread for event in seen.events} == {"worker"}


def test_a_warm_up_does_not_count() -> None:
    f = jax.jit(lambda x: x * 23)
    with tx.compiles() as seen:
        with seen.warm():
            f(1.0)
        f(1.0)
    assert seen.traces == 0
    assert len(seen.warmup) == 3


def test_it_reads_as_a_table() -> None:
    def scaled(x):
        return x * 24

    with tx.compiles() as seen:
        jax.jit(scaled)(1.0)
    *rows, last = str(seen).splitlines()
    assert [row.split()[:2] for row in rows] == [[stage, "scaled"] for stage in ("trace", "lowering", "compile")]
    assert last.startswith("1 traced, 1 lowered, 1 compiled, 0 found on disk, in ")
    assert last == seen.total
    assert seen._repr_html_().count("<tr>") == 3
    assert str(tx.compiles()).startswith("0 traced")


CACHED = """
import jax, sys
import erythroxy_tx as tx
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
with tx.compiles() as seen:
    jax.jit(lambda x: x * 25)(1.0)
print(seen.backend_compiles, seen.cache_hits)
"""


def test_a_program_found_on_disk_is_no_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys

    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
    command = [sys.executable, "-c", CACHED, str(tmp_path)]
    found = [subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout for _ in range(2)]
    assert found == ["1 0\n", "0 1\n"]


def test_eager_operations_and_the_librarys_own_are_heard() -> None:
    with tx.compiles() as seen:
        jnp.sinh(np.ones(101, np.float32))
        tx.chunked(jax.lax.map, 3)(lambda x: x - x.mean(0))(np.ones(101, np.float32))
    assert {"sinh"} < {event.name for event in seen.events}


LATE = """
{first}
import erythroxy_tx as tx
import jax, numpy as np
step = jax.jit(lambda t, b: t + b.sum())
a, t = jax.device_put(np.ones(3)), jax.device_put(np.float32(0))
for _ in range(3):
    t = step(t, a)
try:
    with tx.no_recompile():
        step(t, a)
    print("nothing compiled")
except tx.RetraceError:
    print("compiled")
"""


@pytest.mark.parametrize("first", ["import jax", ""])
def test_the_first_use_of_this_library_compiles_nothing_again_or_says_so(first: str) -> None:
    found = subprocess.run([sys.executable, "-c", LATE.format(first=first)], capture_output=True, text=True, check=True)
    if first:
        assert found.stdout == "nothing compiled\n"
        assert not found.stderr
    else:  # it depends on the version of JAX
        assert (found.stdout == "compiled\n") == ("was first used after JAX had compiled programs" in found.stderr)
