"""Every setting with its value, the value that counts, and where that comes from. Not here: what is wrong with it."""

import dataclasses
import enum
from typing import Any

from erythroxy_tx.host.checkup.facts import Facts

_GPU_NAMES = {"cuda", "gpu", "rocm"}
_MEMORY = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_")
OLD_FRACTION, FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
PREALLOCATE, ALLOCATOR = "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR"
_DEFAULTS = {FRACTION: "0.75", PREALLOCATE: "true", ALLOCATOR: "default", "CUDA_VISIBLE_DEVICES": "all"}
_OPTIONS = {
    FRACTION: "memory_fraction",
    OLD_FRACTION: "memory_fraction",
    PREALLOCATE: "preallocate",
    ALLOCATOR: "allocator",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting.

    **Attributes:**

    - `name`: of the variable; `jax_...` for a value that only `jax.config` sets.
    - `value`: as it is written; None where it is not set.
    - `effective`: the value that counts, where it is known.
    - `origin`: `"environment"`, which the process began with, `"os.environ"`, set in it, `"jax.config"` or `"default"`.
    """

    name: str
    value: str | None
    effective: str | None
    origin: str


def settings(facts: Facts) -> tuple[Setting, ...]:
    """What is set, and the defaults that matter here."""
    found = [
        Setting(name, value, _effective(facts, name, value), origin(facts, name))
        for name, value in sorted(facts.environ.items())
    ]
    defaults = dict(_DEFAULTS) if uses_gpu(facts) and facts.machine.has_gpu else {}
    if OLD_FRACTION in facts.environ:
        defaults.pop(FRACTION, None)
    found += [Setting(name, None, value, "default") for name, value in defaults.items() if name not in facts.environ]
    here = facts.jax.config_here or {}
    changed = {name: value for name, value in here.items() if _plain(value) != _plain(facts.jax.config.get(name))}
    written = {setting.name.lower() for setting in found}
    found += [Setting(n, None, _plain(value), "jax.config") for n, value in changed.items() if n not in written]
    return tuple(found)


def origin(facts: Facts, name: str) -> str:
    """Where the value that counts comes from."""
    here = facts.jax.config_here
    if here is not None and name.lower() in here and here[name.lower()] is not None:
        seen, fresh = _plain(here[name.lower()]), _plain(facts.jax.config.get(name.lower()))
        if seen != fresh and not any(late.name == name for late in facts.late):
            return "jax.config"
    if facts.at_start is not None and facts.at_start.get(name) != facts.environ.get(name):
        return "os.environ"
    return "environment"


def where(facts: Facts, name: str) -> str:
    """A setting as a finding names it: `XLA_FLAGS (environment)`."""
    return f"{name} ({origin(facts, name)})"


def says(value: Any, written: str) -> bool:
    """Whether a value of `jax.config` is what is written in the environment."""
    text, value = written.strip().casefold(), _by_name(value)
    if isinstance(value, bool):
        return text in (("y", "yes", "t", "true", "on", "1") if value else ("n", "no", "f", "false", "off", "0"))
    if isinstance(value, int | float):
        try:
            return float(text) == value
        except ValueError:
            return str(value).casefold() == text
    return text == _plain(value).strip().casefold()


def literal(value: Any, written: str) -> str:
    """What is written in the environment as Python writes it, for a setting that has `value` now."""
    value = _by_name(value)
    if isinstance(value, bool):
        return str(says(True, written))  # noqa: FBT003
    return written if isinstance(value, int | float) else repr(written)


def uses_gpu(facts: Facts) -> bool:
    """Whether a run would use a GPU, or its settings aim at one."""
    platforms = facts.read("JAX_PLATFORMS") or facts.read("JAX_PLATFORM_NAME")
    if platforms:
        return bool(_GPU_NAMES & set(platforms.replace(" ", "").split(",")))
    return facts.machine.has_gpu or facts.jax.backend == "gpu" or any(n.startswith(_MEMORY) for n in facts.in_force)


def _effective(facts: Facts, name: str, value: str) -> str | None:
    late = next((late for late in facts.late if late.name == name), None)
    if (seen := facts.config(name.lower())) is not None:
        return value if says(seen, value) else _plain(seen)
    if late is not None:
        return "no value" if late.counts is None else late.counts
    if name in _OPTIONS:
        seen = facts.jax.options.get(_OPTIONS[name])
        return None if seen is None else value if says(seen, value) else _plain(seen)
    return value


def _plain(value: Any) -> str:
    return str(_by_name(value))


def _by_name(value: Any) -> Any:
    """A value of an enumeration as it is written in the environment."""
    return value.name.lower() if isinstance(value, enum.Enum) else value
