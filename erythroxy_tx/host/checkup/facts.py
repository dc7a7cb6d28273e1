"""Everything that the checks look at, gathered once. A test makes its own."""

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erythroxy_tx._compat_started import backend_started
from erythroxy_tx.host.checkup import machine
from erythroxy_tx.host.checkup.asked import Jax
from erythroxy_tx.host.checkup.asked import ask
from erythroxy_tx.host.checkup.counts import CacheCounts
from erythroxy_tx.host.checkup.counts import cache_counts
from erythroxy_tx.host.checkup.machine import Machine
from erythroxy_tx.host.checkup.watch import Late
from erythroxy_tx.host.checkup.watch import is_setting
from erythroxy_tx.host.checkup.watch import late_settings
from erythroxy_tx.host.checkup.watch import settings_before_watch
from erythroxy_tx.host.checkup.words import flag_names
from erythroxy_tx.host.checkup.words import setting_names
from erythroxy_tx.host.compile_cache import CompileCache
from erythroxy_tx.host.compile_cache import compile_cache
from erythroxy_tx.host.compile_cache import jaxlib_installed
from erythroxy_tx.host.files import ROOT
from erythroxy_tx.host.xla_env import LATENCY_HIDING
from erythroxy_tx.host.xla_env import xla_knows
from erythroxy_tx.host.xla_flags import flags_of


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the checks look at.

    **Attributes:**

    - `environ`: the settings in the environment now.
    - `at_start`: those that the process was started with; None where the system does not tell.
    - `late`: those that were made after they had been read.
    - `before_watch`: those when this package was imported, if a backend ran by then.
    - `jax`: what JAX says of itself.
    - `names`: the settings that JAX knows but for those of `jax.config`; None where it was not asked.
    - `flags`: the flags that jaxlib knows; None where it was not asked.
    - `knows_scheduler`: whether jaxlib knows the flag of the latency hiding scheduler.
    - `machine`: what is under it.
    - `cache`, `counts`: the compilation cache, and how it fared in this process.
    """

    environ: Mapping[str, str]
    jax: Jax
    at_start: Mapping[str, str] | None = None
    late: tuple[Late, ...] = ()
    before_watch: Mapping[str, str] | None = None
    names: frozenset[str] | None = None
    flags: frozenset[str] | None = None
    knows_scheduler: bool = True
    machine: Machine = dataclasses.field(default_factory=Machine)
    cache: CompileCache = dataclasses.field(default_factory=CompileCache)
    counts: CacheCounts | None = None

    def config(self, name: str) -> Any:
        """A value of `jax.config`: that of this process if it has imported JAX; None where it is not known."""
        return self._config.get(name)

    def read(self, name: str) -> str:
        """What `jax.config` has for a setting `JAX_...`; where nobody has imported JAX, what the environment has."""
        found = self._config.get(name.lower()) if name.lower() in self._config else self.environ.get(name)
        return str(found or "")

    @property
    def _config(self) -> Mapping[str, Any]:
        return self.jax.config if self.jax.config_here is None else self.jax.config_here

    @property
    def in_force(self) -> dict[str, str]:
        """The settings that count: those that came too late have the value that was read."""
        read = {late.name: late.counts for late in self.late if not late.name.startswith("JAX_")}
        return {name: value for name, value in {**self.environ, **read}.items() if value is not None}

    @property
    def flag_values(self) -> list[tuple[str, str]]:
        """The flags of XLA_FLAGS, in order, as a name without dashes and a value."""
        return [(flag.name, flag.value) for flag in flags_of(self.in_force.get("XLA_FLAGS", ""))[0]]


def gather(*, root: Path = ROOT) -> Facts:
    """Look at this process, at JAX, and at the machine."""
    environ = {name: value for name, value in os.environ.items() if is_setting(name)}
    jax = _jax()
    names = flags = None
    known = {"XLA_FLAGS", *(name.upper() for name in jax.config)}
    other = [name for name in environ if name.startswith(("JAX_", "XLA_")) and name not in known]
    if jax.config and other:
        names = setting_names(other)
    if any(bad.kind == "unknown" for bad in jax.bad_flags):
        flags = flag_names()
    facts = Facts(environ, jax, settings_at_start(root), late_settings(), settings_before_watch(), names, flags)
    cache = compile_cache(facts.read("JAX_COMPILATION_CACHE_DIR"), installed=jaxlib_installed())
    folder = cache.folder if isinstance(cache.folder, Path) and cache.is_folder else None
    found = machine.look(os.environ, folder, root=root)
    knows = found.has_gpu and xla_knows(LATENCY_HIDING) is True
    return dataclasses.replace(facts, cache=cache, counts=cache_counts(), machine=found, knows_scheduler=knows)


def _jax() -> Jax:
    """What JAX says in another process, and where a backend runs in this one, its devices."""
    here = sys.modules.get("jax")
    if not hasattr(here, "config"):  # not imported, or it failed
        return ask(os.environ)
    config = dict(here.config.values)  # type: ignore[union-attr]
    if not backend_started():
        return dataclasses.replace(ask(os.environ), config_here=config)
    devices = here.devices()  # type: ignore[union-attr]
    return dataclasses.replace(
        ask(os.environ, start=False),
        outcome="works",
        error="",
        asked="this process",
        version=here.__version__,  # type: ignore[union-attr]
        config_here=config,
        backend=here.default_backend(),  # type: ignore[union-attr]
        devices=tuple(map(str, devices)),
    )


def settings_at_start(root: Path) -> dict[str, str] | None:
    """The settings that this process was started with."""
    try:
        found = os.fsdecode((root / "proc/self/environ").read_bytes())
    except OSError:
        return None
    entries = found.rstrip("\0").split("\0") if found else []
    if not all("=" in entry for entry in entries):  # a program that renames its process writes over it
        return None
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, _, value in pairs if is_setting(name)}
