"""Checks of XLA_FLAGS, and of settings that came after the backend had read them."""

import re
from collections.abc import Iterator
from shlex import quote

from erythroxy_tx.host.checkup.asked import BadFlag
from erythroxy_tx.host.checkup.facts import Facts
from erythroxy_tx.host.checkup.finding import Finding
from erythroxy_tx.host.checkup.finding import finding
from erythroxy_tx.host.checkup.settings import where
from erythroxy_tx.host.checkup.words import nearest
from erythroxy_tx.host.xla_flags import Flag
from erythroxy_tx.host.xla_flags import file_of
from erythroxy_tx.host.xla_flags import flags_of
from erythroxy_tx.host.xla_flags import split

_DEVICES = "xla_force_host_platform_device_count"
_JOINED = re.compile(r"[,;]\s*(?=--)")  # between two flags
_TOO_LATE = "set it before the first JAX operation: above the first use of jax, or in the shell"
_READ_ONCE = "XLA reads its settings when the backend starts, which is the first operation or jax.devices()"


def check(facts: Facts) -> Iterator[Finding]:
    """Look at the flags, and at what came too late."""
    fix = _fix(facts)
    yield from (_bad(facts, bad, fix) for bad in facts.jax.bad_flags)
    given, rest = flags_of(facts.in_force.get("XLA_FLAGS", ""))
    if rest:
        what = f"{rest.split()[0]!r} and what follows it is not read"
        why = "XLA ends its reading at the first word that does not begin with a dash, and says nothing"
        yield finding("E107", where(facts, "XLA_FLAGS"), what, why=why, fix=fix)
    before: dict[str, Flag] = {}
    for flag in given:
        first = before.setdefault(flag.name, flag)
        if first.value != flag.value:
            what = f"--{flag.name} is given twice: {first.value} and {flag.value}"
            yield finding("E104", where(facts, "XLA_FLAGS"), what, why="the last one counts", fix=fix)
        before[flag.name] = flag
    yield from _late(facts)
    yield from _maybe_late(facts)


def _bad(facts: Facts, bad: BadFlag, fix: str) -> Finding:
    place = where(facts, "XLA_FLAGS")
    ends = "it ends every process at the start of the backend, without an exception"
    if bad.kind == "file":
        what = f"no file {bad.flag!r}: what does not begin with -- is taken for the name of a file of flags"
        fix = f"export XLA_FLAGS={quote(f'--{bad.flag}')}" if bad.flag.startswith("xla_") else "unset XLA_FLAGS"
        return finding("E103", place, what, why=ends, fix=fix)
    code = "E102" if bad.kind == "value" else "E101"
    if _JOINED.search(bad.flag):
        return finding(
            code, place, f"{bad.flag} is read as one flag: XLA wants spaces between flags", why=ends, fix=fix
        )
    if bad.kind == "value":
        what = f"{bad.flag}: the value cannot be read; a flag takes true or false, or a number"
        return finding(code, place, what, why=ends, fix=fix)
    name = bad.flag.partition("=")[0].lstrip("-")
    near = nearest(name, facts.flags or ())
    meant = f"; perhaps --{near} is meant" if near is not None else ""
    if near == name:
        meant = ": it takes a value, after ="
        fix += "" if _rest(facts) else f"   # or with --{name}=VALUE"
    return finding(code, place, f"{bad.flag} is unknown to jaxlib {facts.jax.jaxlib}{meant}", why=ends, fix=fix)


def _fix(facts: Facts) -> str:
    """XLA_FLAGS with all of it mended: one fix for every finding, so that none undoes another."""
    text = facts.environ.get("XLA_FLAGS", "")
    if (file := file_of(text)) is not None:
        return f"edit {quote(file)}"
    bad_flags = {bad.flag.lstrip("-"): bad for bad in facts.jax.bad_flags}
    kept: dict[str, str] = {}
    for flag in _with_values(text):
        bad = bad_flags.get(flag.plain.lstrip("-")) or bad_flags.get(flag.name)
        kept[flag.name] = flag.written if bad is None else _mended(facts, flag, bad)
    flags = " ".join(flag for flag in kept.values() if flag)
    return f"export XLA_FLAGS={quote(flags)}" if flags else "unset XLA_FLAGS"


def _with_values(text: str) -> tuple[Flag, ...]:
    """The flags, with `=` where a value was given after a space, and without other words."""
    given, rest = split(text)
    while rest:
        before = " ".join(flag.written for flag in given)
        has_value = not given or "=" in given[-1].written
        text = f"{before} {''.join(rest.split(maxsplit=1)[1:])}" if has_value else f"{before}={rest}"
        given, rest = split(text)
    return given


def _mended(facts: Facts, flag: Flag, bad: BadFlag) -> str:
    """What a flag that ends the process probably means; nothing where that is not known."""
    if _JOINED.search(flag.written):
        return _JOINED.sub(" ", flag.written)
    near = nearest(flag.name, facts.flags or ()) if bad.kind == "unknown" else None
    if near == flag.name:  # known: what it lacked was a value
        return flag.written if flag.plain != bad.flag else ""
    return flag.written.replace(flag.name, near, 1) if near is not None else ""


def _rest(facts: Facts) -> str:
    return split(facts.environ.get("XLA_FLAGS", ""))[1]


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
