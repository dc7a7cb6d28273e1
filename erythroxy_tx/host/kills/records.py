"""The lines of logs as records: who said what, where, and when. Not here: what the words mean.

A line may quote another: a program that prints "Killed process 5" has killed nothing. So each record knows its
speaker, by the field that the journal itself has written, or else by the head of the line. Lines without a head have no
speaker; a line whose head is not known has one that no reader of words listens to.
Sources: journalctl(1), systemd.journal-fields(7), dmesg(1), kernel documentation ABI/testing/dev-kmsg.
"""

import dataclasses
import datetime as dt
import json
import re
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

NOBODY = "?"  # speaks, but is none of those that we listen to
_KNOWN = {"kernel", "systemd", "systemd-oomd", "earlyoom"}
_MANAGERS = {"(systemd)", "init"}  # what systemd is called before it has its name
_LONGEST = 2**14  # characters of a message; the kernel's have at most 1024, and two paths at most 8192

# One of these is in all that is said of a kill, and in little else. (A search for each is faster than one pattern.)
_WORDS = ("oom", "OOM", "kill", "Kill", "KILL", "emory", "MEMORY", "SIGTERM", "dryrun", "RESOURCE_EXHAUSTED")
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_CONTROL = dict.fromkeys([*range(32), *range(127, 160)], " ")  # what a terminal would obey

_KMSG = re.compile(r"(?a)(\d{1,3}),\d+,(\d{1,19}),[^;]*;(.*)")
_PRIORITY = re.compile(r"(?a)<(\d{1,3})>(.*)")
_RFC_5424 = re.compile(r"(?a)1 (\S+) (\S+) (\S+) (\S+) \S+ (?:-|(?:\[(?:[^\]\\]|\\.)*\])+) ?\ufeff?(.*)")
_FACILITY = r"(?:kern|user|mail|daemon|auth|authpriv|syslog|lpr|news|uucp|cron|ftp|local\d)"
_DECODED = re.compile(rf"(?a)({_FACILITY}) *:\w+ *: (.*)")  # dmesg -x
_DELTA = r"(?: ?<[ \d.]*>)?"  # dmesg -d
_BOOT = re.compile(rf"(?a)\[ *(\d{{1,12}}\.\d+){_DELTA}\](?:\[ *[TC]\d+\])? ?(.*)")
_BRACKET = re.compile(  # dmesg -T, in any language
    rf"(?a)\[([^\s\[\]]+ [^\s\[\]]+ +\d{{1,2}}) (\d\d:\d\d:\d\d)( \d{{4}}){_DELTA}\] ?(.*)"
)
_DMESG_ISO = re.compile(rf"(?a)(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{{6}}[+-]\d\d:\d\d){_DELTA} (.*)")
_MARK = re.compile(r"(?a)(\[(?: *\+\d+\.\d+|<[ \d.]*>|[^\s\[\]\d]+ ?\d+ \d\d:\d\d)\]) ?(.*)")  # dmesg -e
_UNIX = re.compile(r"(?a)(\d{9,11}\.\d{6}) (.*)")
_ISO = re.compile(
    r"(?a)(?:[^\s\d:\[\]]{1,3}\.? )?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d{1,6})?)"
    r"(?: ?(Z|[+-]\d\d(?::?\d\d)?|[A-Z]{3,5}))? (.*)"
)
_DATE = re.compile(  # the month in any language
    r"(?a)(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?((?:[^\s:\[\]]+ +\d{1,2} +)?)"
    r"(\d\d:\d\d:\d\d(?:\.\d+)?)( \d{4})? +(.*)"
)
_HEAD = re.compile(  # BusyBox and OpenWrt name the facility
    rf"(?a)(?:(?P<host>(?!{_FACILITY}\.)\S+) )?(?:(?P<facility>{_FACILITY})\.\w+ )?"
    r"(?P<name>[^\s:\[\]]+)(?:\[(?P<instance>\d+)\])?: (?P<said>.*)"
)


class Clock(NamedTuple):
    """When something was said. Two clocks of different kinds cannot be compared. `day` is for those that start anew
    each day, as it is written.
    """

    kind: str
    seconds: float
    day: str = ""


@dataclasses.dataclass(frozen=True)
class Record:
    """One line of a log.

    **Attributes:**

    - `said`: the message alone.
    - `speaker`: who has said it; None where the line does not tell.
    - `instance`: the number of the speaker's process.
    - `line`: the line as it is cited.
    - `when`: its time as it is written; in the zone of the log.
    - `message_id`, `unit`: fields of the journal.
    """

    said: str
    speaker: str | None
    line: str
    instance: str | None = None
    host: str | None = None
    when: str | None = None
    clock: Clock | None = None
    message_id: str | None = None
    unit: str | None = None

    @property
    def time(self) -> Clock:
        """The clock, or one for all that has none."""
        return self.clock or Clock("", 0.0)


def records(lines: Iterable[str]) -> Iterator[Record]:
    """Read the lines of a log: of the journal as JSON or in a short form, of dmesg, /dev/kmsg or syslog, mixed.

    Lines that can say nothing of a kill, and lines that cannot be read, are left out.
    """
    for raw in lines:
        line = raw.lstrip("\ufeff\x1e")  # journalctl -o json-seq
        line = line.removeprefix("data: ") if line.startswith("data: {") else line  # json-sse
        found = _json(line) if line.startswith("{") else _text(line) if _is_worth_reading(line) else None
        if found is not None and len(found.said) <= _LONGEST:
            yield found


def has_head(line: str) -> bool:
    """Whether a line begins as those of a log do, whatever it says."""
    if line.startswith("{"):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return False
        return "MESSAGE" in fields
    found = _text(line)
    return found is not None and (found.when is not None or found.speaker in _KNOWN)


def _is_worth_reading(text: str) -> bool:
    return any(word in text for word in _WORDS)


def unix_time(seconds: float) -> str:
    """A time since 1970 as text, in UTC."""
    try:
        moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (ValueError, OverflowError, OSError):  # outside of the calendar
        return f"{seconds:.0f}"
    return moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")


def _json(line: str) -> Record | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    said = _message(fields.get("MESSAGE")) if isinstance(fields, dict) else None
    if said is None or not (_is_worth_reading(said) or "MESSAGE_ID" in fields):
        return None
    stamp = _field(fields, "__REALTIME_TIMESTAMP") or ""
    clock = Clock("unix", int(stamp) / 1e6) if re.fullmatch(r"(?a)\d{1,18}", stamp) else None
    when = unix_time(clock.seconds) if clock else None
    host, instance = _field(fields, "_HOSTNAME"), _field(fields, "_PID")
    name = _field(fields, "_COMM") or _field(fields, "SYSLOG_IDENTIFIER") or _field(fields, "_TRANSPORT") or NOBODY
    head = f"{name}[{instance}]" if instance else name
    return Record(
        said=said,
        speaker=_speaker(fields),
        line=" ".join(filter(None, (when, host, f"{head}:", said))),
        instance=instance,
        host=host,
        when=when,
        clock=clock,
        message_id=_field(fields, "MESSAGE_ID"),
        unit=_field(fields, "UNIT") or _field(fields, "USER_UNIT"),
    )


def _speaker(fields: dict[str, Any]) -> str:
    """By what the journal has written, whose names begin with `_`: a program may give itself any identifier."""
    transport, name = _field(fields, "_TRANSPORT"), _field(fields, "SYSLOG_IDENTIFIER")
    if transport == "kernel" or (transport is None and name == "kernel"):
        # The kernel does not let programs that write to /dev/kmsg have its facility, 0.
        return "kernel" if _field(fields, "SYSLOG_FACILITY") in {None, "0"} else NOBODY
    return _listened(_field(fields, "_COMM") or name or NOBODY, but="kernel")


def _listened(name: str, *, but: str = "") -> str:
    name = "systemd" if name in _MANAGERS else name
    return name if name in _KNOWN and name != but else NOBODY


def _field(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if isinstance(value, list) and value and isinstance(value[0], str):
        value = value[0]  # a field that was given several times
    return _clean(value) if isinstance(value, str) else None


def _message(value: object) -> str | None:
    """The message; a list of bytes where it is not plain text."""
    if isinstance(value, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        value = bytes(value).decode("utf-8", "replace")
    return _clean(value) if isinstance(value, str) else None


def _clean(value: str) -> str:
    return value.encode("utf-8", "replace").decode("utf-8").translate(_CONTROL).strip()


def _text(line: str) -> Record | None:
    line = rest = _clean(_COLOUR.sub("", line))
    if found := _KMSG.fullmatch(rest):
        boot = int(found[2]) / 1e6
        speaker = "kernel" if int(found[1]) < 8 else NOBODY
        head = f"[{boot:.6f}]"
        return Record(found[3], speaker, f"{head} {found[3]}", when=head, clock=Clock("boot", boot))
    is_kernel: bool | None = None
    if found := _PRIORITY.fullmatch(rest):
        is_kernel, rest = int(found[1]) < 8, found[2]
        if found := _RFC_5424.fullmatch(rest):
            time, host, name, instance, said = found.groups()
            number = "" if instance == "-" else f"[{instance}]"
            rest = f"{time} {host} {name}{number}: {said}"
    elif found := _DECODED.fullmatch(rest):
        is_kernel, rest = found[1] == "kern", found[2]
    when, clock, rest = _ring_time(rest)
    is_ring = when is not None
    if not is_ring:
        when, clock, rest = _time(rest)
    spoken = _HEAD.fullmatch(rest)
    if spoken and (_listened(spoken["name"]) != NOBODY or not (is_ring or when is None)):
        said = spoken["said"]
        if spoken["name"] == "kernel" and (stamped := _BOOT.fullmatch(said)):  # syslog keeps the kernel's own time
            said = stamped[2]
        # The kernel has no number.
        is_forged = is_kernel is False or spoken["instance"] or spoken["facility"] not in {None, "kern"}
        speaker = _listened(spoken["name"], but="kernel" if is_forged else "")
        return Record(said, speaker, line, spoken["instance"], spoken["host"], when, clock)
    if is_kernel is False or (when is not None and not is_ring):
        return Record(rest, NOBODY, line, when=when, clock=clock)
    return Record(rest, "kernel" if is_ring else None, line, when=when, clock=clock)


def _ring_time(rest: str) -> tuple[str | None, Clock | None, str]:
    """The time at the head of a line of dmesg, and what follows it."""
    if found := _BOOT.fullmatch(rest):
        return f"[{found[1]}]", Clock("boot", float(found[1])), found[2]
    if found := _BRACKET.fullmatch(rest):
        day = found[1] + found[3]
        return f"[{found[1]} {found[2]}{found[3]}]", Clock("dmesg", _seconds(found[2]), day), found[4]
    if found := _DMESG_ISO.fullmatch(rest):
        return found[1], _moment(found[1]), found[2]
    if found := _MARK.fullmatch(rest):
        return found[1], None, found[2]
    return None, None, rest


def _time(rest: str) -> tuple[str | None, Clock | None, str]:
    """The time at the head of a line of the journal or of syslog, and what follows it."""
    if found := _UNIX.fullmatch(rest):
        return unix_time(float(found[1])), Clock("unix", float(found[1])), found[2]
    if found := _ISO.fullmatch(rest):
        day, time, zone, rest = found.groups()
        when = f"{day} {time} {zone or ''}".strip()
        clock = _moment(f"{day}T{time}{zone or ''}")
        return when, clock or Clock("iso", _seconds(time), f"{day} {zone or ''}"), rest
    if found := _DATE.match(rest):
        day = " ".join(found[1].split())
        return f"{day} {found[2]}{found[3] or ''}".strip(), Clock("syslog", _seconds(found[2]), day), found[4]
    return None, None, rest


def _moment(text: str) -> Clock | None:
    """A time with its zone; None where the zone has only a name or is not there, and where there is no such day."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return Clock("unix", moment.timestamp()) if moment.tzinfo is not None else None


def _seconds(time: str) -> float:
    hours, minutes, seconds = time.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
