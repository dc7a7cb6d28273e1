"""Checks of JAX itself: whether it is there, imports, starts, and uses the GPU."""

from collections.abc import Iterator

from erythroxy_tx.host.checkup.facts import Facts
from erythroxy_tx.host.checkup.finding import Finding
from erythroxy_tx.host.checkup.finding import finding
from erythroxy_tx.host.checkup.names import is_named
from erythroxy_tx.host.checkup.settings import uses_gpu
from erythroxy_tx.host.checkup.visible import is_hidden

_CODES = {
    "missing": "E001",
    "no import": "E002",
    "no start": "E003",
    "no answer": "E004",
    "ended": "E005",
    "not asked": "E007",
}
_WHAT = {
    "missing": "JAX is not installed for this Python",
    "no import": "import jax fails",
    "no start": "JAX imports, and no backend starts",
    "no answer": "the backend did not start in time",
    "ended": "the process ended while JAX started",
    "not asked": "JAX was not asked",
}
_WHY = {
    "missing": "nothing of it can be checked",
    "no import": "no program with JAX runs",
    "no start": "the first operation raises this error",
    "no answer": "a driver or a device hangs, or another process holds it",
    "ended": "no exception is raised, so a program cannot catch it",
    "not asked": "what is read from it is not checked",
}
_FIX = {
    "missing": "pip install jax",
    "no import": "pip install --upgrade --force-reinstall jax jaxlib",
    "no start": "export JAX_PLATFORMS=cpu   # to go on without the device",
    "no answer": "nvidia-smi   # if it hangs too, restart the driver or the machine",
    "ended": "JAX_PLATFORMS=cpu python -c 'import jax; jax.devices()'   # if this works, it is the plugin",
    "not asked": "erythroxy doctor   # in a shell with the same settings",
}

_PLUGINS = {"cuda": ("cuda",), "rocm": ("rocm",), "gpu": ("cuda", "rocm")}  # by platform, in the names of plugins
_DRIVERS = {"cuda": "NVIDIA", "rocm": "AMD", "gpu": "GPU"}


def check(facts: Facts) -> Iterator[Finding]:
    """Look at how far JAX got."""
    outcome, error = facts.jax.outcome, facts.jax.error
    lacking = _lacking(facts) if outcome == "no start" else ()
    if lacking:
        fix = _FIX["no start"] if not facts.machine.has_gpu else "pip install --upgrade 'jax[cuda13]'   # for NVIDIA"
        why = f"JAX_PLATFORMS={facts.environ['JAX_PLATFORMS']} needs it; the first operation raises {error}"
        yield finding("E003", "JAX", ", and ".join(lacking), why=why, fix=fix)
    elif outcome in _CODES and not _is_of_a_setting(facts):
        what = f"{_WHAT[outcome]}: {error}" if error else _WHAT[outcome]
        yield finding(_CODES[outcome], "JAX", what, why=_WHY[outcome], fix=_FIX[outcome])
    if facts.jax.backend == "cpu" and facts.machine.has_gpu and uses_gpu(facts) and not is_hidden(facts):
        plugins = ", ".join(f"{name} {version}" for name, version in facts.jax.plugins.items()) or "none"
        yield finding(
            "E006",
            "JAX",
            f"this machine has a GPU, and JAX runs on the CPU (plugins: {plugins})",
            why="JAX falls back to the CPU without an error where no plugin for the GPU is installed, or it fails",
            fix="pip install --upgrade 'jax[cuda13]'   # for NVIDIA; or export JAX_PLATFORMS=cpu, if that is meant",
        )


def _lacking(facts: Facts) -> tuple[str, ...]:
    """What there is not, of what the platform of a GPU in JAX_PLATFORMS needs."""
    platforms = [name.strip() for name in facts.environ.get("JAX_PLATFORMS", "").split(",")]
    platform = next((name for name in platforms if name in _PLUGINS), None)
    if platform is None:
        return ()
    has_plugin = any(kind in plugin for plugin in facts.jax.plugins for kind in _PLUGINS[platform])
    plugin = () if has_plugin else (f"no plugin for {' or '.join(_PLUGINS[platform])} is installed here",)
    driver = () if facts.machine.has_gpu else (f"no {_DRIVERS[platform]} driver is loaded",)
    return (*plugin, *driver)


def _is_of_a_setting(facts: Facts) -> bool:
    """Whether the error names a setting, which the check of names reports."""
    return facts.jax.outcome == "no import" and any(is_named(name, facts.jax.error) for name in facts.environ)
