"""How the compilation cache fares in a process: case 65, in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

from erythroxy_tx.host.checkup.watch import is_setting

PROGRAM = """
import sys
folder, mode = sys.argv[1:]
import erythroxy_tx as tx
import jax, jax.numpy as jnp
from erythroxy_tx.host.checkup import facts
from erythroxy_tx.host.checkup.asked import Jax
tx.doctor
if mode == "late":
    jnp.full((3,), 2.0)
jax.config.update("jax_compilation_cache_dir", folder)
if mode != "default":
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
if mode != "late":
    jnp.full((3,), 2.0)
jax.jit(lambda x: jnp.tanh(x @ x).sum())(jnp.ones((8, 8)))
facts.ask = lambda *_, **__: Jax("works", config=dict(jax.config.values))
found = tx.doctor()
c = found.counts
print(c.requests, c.hits, c.stored, c.too_fast, c.before_folder, c.not_stored, c.is_complete, found.cache.entries)
print(*[f"{f.code} {f.what}" for f in found.findings if f.code in ("E504", "E505", "E508")])
"""


def start(folder: Path, mode: str) -> subprocess.Popen:
    environ = {name: value for name, value in os.environ.items() if not is_setting(name)} | {"JAX_PLATFORMS": "cpu"}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", PROGRAM, str(folder), mode]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)


def lines(run: subprocess.Popen) -> list[str]:
    out, _ = run.communicate()
    return out.splitlines()


def test_case_65_a_cache_that_stays_empty(tmp_path: Path) -> None:
    """Source: jax-ml/jax issues 21908 and 25768: no files appear; the folder was set after the first array."""
    default, late = start(tmp_path / "default", "default"), start(tmp_path / "late", "late")
    assert lines(default) == [
        "5 0 0 5 0 0 True 0",
        "E504 5 requests below the 1 s minimum compile time, so 0 stored",
    ]
    assert lines(late) == ["5 0 3 0 2 0 True 3", "E505 2 programs were compiled before the cache had a folder"]
    second_start = start(tmp_path / "late", "in time")
    assert lines(second_start) == ["5 3 2 0 0 0 True 5", ""]
