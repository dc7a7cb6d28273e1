"""Checks of XLA_FLAGS, and of settings that came after the backend had read them."""

import shlex
from collections.abc import Iterator

from erythroxy_tx.host.checkup.asked import BadFlag
from erythroxy_tx.host.checkup.facts import Facts
from erythroxy_tx.host.checkup.finding import Finding
from erythroxy_tx.host.checkup.finding import finding
from erythroxy_tx.host.checkup.settings import where
from erythroxy_tx.host.checkup.words import nearest

_DEVICES = "xla_force_host_platform_device_count"
_TOO_LATE = "set it before the first JAX operation: above the first use of jax, or in the shell"
_READ_ONCE = "XLA reads its settings when the backend starts, which is the first operation or jax.devices()"


def check(facts: Facts) -> Iterator[Finding]:
    """Look at the flags, and at what came too late."""
    yield from (_bad(facts, bad) for bad in facts.jax.bad_flags)
    values: dict[str, str] = {}
    for name, value in facts.flag_values:
        if values.get(name, value) != value:
            yield finding(
                "E104",
                where(facts, "XLA_FLAGS"),
                f"--{name} is given twice: {values[name]} and {value}",
                why="the last one counts",
                fix=_export(facts, f"--{name}={values[name]}", ""),
            )
        values[name] = value
    yield from _late(facts)
    yield from _maybe_late(facts)


def _bad(facts: Facts, bad: BadFlag) -> Finding:
    place = where(facts, "XLA_FLAGS")
    ends = "it ends every process at the start of the backend, without an exception"
    if bad.kind == "value":
        what = f"{bad.flag}: the value cannot be read; a flag takes true or false, or a number"
        return finding("E102", place, what, why=ends, fix=_export(facts, bad.flag, ""))
    if bad.kind == "file":
        what = f"no file {bad.flag!r}: what does not begin with -- is taken for the name of a file of flags"
        return finding("E103", place, what, why=ends, fix=f"export XLA_FLAGS=--{bad.flag.lstrip('-')}")
    name = bad.flag.partition("=")[0]
    near = nearest(name.lstrip("-"), facts.flags or ())
    if "," in bad.flag:
        fix = f"{_export(facts, ',', ' ')}   # spaces, not commas"
    else:
        fix = _export(facts, name, f"--{near}") if near is not None else _export(facts, bad.flag, "")
    meant = f"; perhaps --{near} is meant" if near is not None else ""
    return finding("E101", place, f"{bad.flag} is unknown to jaxlib {facts.jax.jaxlib}{meant}", why=ends, fix=fix)


def _export(facts: Facts, old: str, new: str) -> str:
    """XLA_FLAGS with `new` in the place of `old`, as a line to paste."""
    flags = " ".join(facts.environ.get("XLA_FLAGS", "").replace(old, new, 1 if old != "," else -1).split())
    return f"export XLA_FLAGS={shlex.quote(flags)}"


def _late(facts: Facts) -> Iterator[Finding]:
    """What is known to have come too late: it was seen, or the devices are others than were asked for."""
    found = False
    for late in facts.late:
        if late.name.startswith("JAX_"):
            continue
        found = found or late.name == "XLA_FLAGS"
        now = facts.environ.get(late.name)
        what = f"set at {late.line} to {now!r}" if now is not None else f"deleted at {late.line}"
        yield finding(
            "E105",
            where(facts, late.name),
            f"{what}, after the backend had started with {'no value' if late.counts is None else repr(late.counts)}",
            why=_READ_ONCE,
            fix=_TOO_LATE,
        )
    asked = dict(facts.flag_values).get(_DEVICES, "")
    is_asked = asked.isdecimal() and facts.config("jax_num_cpu_devices") in {-1, None}
    is_here = facts.jax.asked == "this process" and facts.jax.backend == "cpu"
    if is_here and is_asked and not found and int(asked) != len(facts.jax.devices):
        yield finding(
            "E105",
            where(facts, "XLA_FLAGS"),
            f"--{_DEVICES}={asked}, and JAX has {len(facts.jax.devices)}: set after the backend had started",
            why=_READ_ONCE,
            fix=_TOO_LATE,
        )


def _maybe_late(facts: Facts) -> Iterator[Finding]:
    """What changed between the start of the process and the import of this package, by when a backend ran."""
    before, start = facts.before_watch, facts.at_start
    if before is None or start is None:
        return
    changed = sorted(name for name in {*before, *start} if before.get(name) != start.get(name))
    for name in changed:
        if not name.startswith("JAX_") and not any(late.name == name for late in facts.late):
            yield finding(
                "E106",
                where(facts, name),
                "set in this process, and a backend ran when erythroxy_tx was imported",
                why=f"{_READ_ONCE}; which came first was not seen",
                fix="set it before import jax, or import erythroxy_tx before the first operation",
            )
