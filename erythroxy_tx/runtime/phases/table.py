"""A phase in words: a table, a timeline of plain characters, and what to do. Not here: the picture."""

from collections.abc import Iterator
from typing import NamedTuple

from erythroxy_tx.runtime.phases.record import Phase
from erythroxy_tx.runtime.phases.timeline import Timeline

_ROWS = 40
_COLUMNS = 60
_DENSITY = " .:-=#"
_WINDOWS = 32
_FEWEST = 8  # windows, to tell flat from spiky
_APART = 0.5  # of the shares of the windows, from the 10th to the 90th percentile
_SMALL = 0.05  # an upload of less is not worth anything
_BUSY = 0.9  # a device is, from this share on


class Own(NamedTuple):
    """What of a phase is in no phase inside of it."""

    phase: Phase
    seconds: float
    waiting: float  # seconds in which the device had no tracked work


def table(phase: Phase) -> str:
    """All of it."""
    total = phase.seconds
    if not total:
        return f"{phase.name}: not entered yet"
    rows: list[tuple[str, ...]] = [("phase", "times", "seconds", "share", "median", "95 %", "", "device busy")]
    everything = list(walk(phase))
    for depth, each in everything[:_ROWS]:
        rows.append(_row(each, depth, total))
        if each.parts and each.rest > 0.001 * total:
            rest = f"{'  ' * (depth + 1)}(rest)"
            rows.append((rest, "", told(each.rest), percent(each.rest / total), "", "", "", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(everything) > _ROWS:
        lines.append(f"and {len(everything) - _ROWS} phases more")
    return "\n".join([*lines, "", *_timeline(phase), _device(phase), verdict(phase)])


def verdict(phase: Phase) -> str:
    """Where most of the time goes, and what to do about it."""
    total, owns = phase.seconds, [_own(each) for _, each in walk(phase)]
    largest = max(owns, key=lambda own: own.seconds)
    most = f"Most of {phase.name}: {_place(largest, phase)}, {percent(largest.seconds / total)}."
    said = [most] if phase.parts else []
    busy = phase.busy
    if busy is None:
        said.append("What the device did is unknown. Fix: state, loss = step.track(train(state, batch)).")
    elif busy >= _BUSY:
        said.append("The device is not waiting: what is left is in its program. See tx.measure and tx.explain.")
    else:
        waiting = max(owns, key=lambda own: own.waiting)
        said.append(
            f"The device waits most in {_place(waiting, phase)}, {percent(waiting.waiting / total)}: {_fix(waiting)}."
        )
    uploads = [each.seconds for _, each in walk(phase) if each.name == "upload"]
    if uploads:
        small = sum(uploads) / total < _SMALL
        fix = "not worth optimising" if small else "tx.vram_resident keeps what stays the same, tx.prefetch works ahead"
        said.append(f"upload {percent(sum(uploads) / total)}: {fix}.")
    return " ".join(said)


def walk(phase: Phase, depth: int = 0) -> Iterator[tuple[int, Phase]]:
    """A phase and all inside of it, each behind the one that it is in."""
    yield depth, phase
    for part in list(phase.parts.values()):
        yield from walk(part, depth + 1)


def windows(phase: Phase) -> tuple[list[float], float] | None:
    """The share of the device in each of some windows of the outermost phase, and their length; None if unknown."""
    timeline: Timeline | None = phase._timeline if phase._root is phase else None
    if timeline is None or phase.busy is None:
        return None
    lengths = timeline.lengths(_WINDOWS)
    inside = lengths if phase._open else timeline.windows(phase, _WINDOWS)
    worked = timeline.windows("device", _WINDOWS)
    long = [(w, i) for w, i, length in zip(worked, inside, lengths, strict=True) if i > length / 2]
    return [min(1.0, w / i) for w, i in long], max(lengths)


def percent(share: float) -> str:
    """A share for a person: `82 %`, `0.1 %`."""
    return f"{100 * share:.0f} %" if share >= 0.01 or not share else f"{100 * share:.1g} %"


def told(seconds: float) -> str:
    """Seconds for a person, in three digits: `12.3 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale or not seconds:
            return f"{seconds / scale:.3g} {unit}" if seconds < 999.5 * scale else f"{seconds / scale:.0f} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def _row(phase: Phase, depth: int, total: float) -> tuple[str, ...]:
    spiky, busy = phase.is_spiky, phase.busy
    return (
        f"{'  ' * depth}{phase.name}",
        str(phase.times + len(phase._open)),
        told(phase.seconds),
        percent(phase.seconds / total),
        told(phase.median) if phase.times else "",
        told(phase.p95) if phase.times else "",
        "" if spiky is None else "spiky" if spiky else "flat",
        "unknown" if busy is None else f"at most {percent(busy)}",
    )


def _device(phase: Phase) -> str:
    busy, root = phase.busy, phase._root
    if busy is None or root._device is None:
        return "device busy: unknown, as nothing was tracked"
    count, lost = root._device.tracked, root._device.lost
    of = f"{count} tracked value{'s' * (count != 1)}"
    of += f", {lost} of which were donated before anybody waited: track a loss along" if lost else ""
    said = f"device busy {percent(busy)} (upper bound, by {of}), waiting {percent(1 - busy)}"
    found = windows(phase)
    if found is None or len(found[0]) < _FEWEST:
        return said
    shares = sorted(found[0])
    low, high = shares[len(shares) // 10], shares[len(shares) * 9 // 10]
    kind = "spiky" if high - low > _APART else "flat"
    return f"{said}; {kind}, {percent(low)} to {percent(high)} in windows of {told(found[1])}"


def _timeline(phase: Phase) -> Iterator[str]:
    timeline: Timeline | None = phase._root._timeline
    if timeline is None:
        return
    lanes = [(each.name, each) for _, each in walk(phase) if each is not phase][: _ROWS // 2]
    lanes += [("device", "device")] if phase.busy is not None else []  # type: ignore[list-item]
    width = max((len(name) for name, _ in lanes), default=0)
    lengths = timeline.lengths(_COLUMNS)
    for name, lane in lanes:
        shares = [
            w / length if length else 0.0 for w, length in zip(timeline.windows(lane, _COLUMNS), lengths, strict=True)
        ]
        yield f"{name.ljust(width)} |{''.join(map(_character, shares))}|"
    if lanes:
        yield f"{' ' * width}  0 s{told(timeline.end).rjust(len(lengths) - 3)}"
        yield ""


def _character(share: float) -> str:
    most = len(_DENSITY) - 1
    return _DENSITY[min(most, max(1, round(share * most)))] if share > 0 else " "


def _own(phase: Phase) -> Own:
    seconds = phase.rest if phase.parts else phase.seconds
    worked = (phase.busy or 0.0) * phase.seconds
    worked -= sum((part.busy or 0.0) * part.seconds for part in list(phase.parts.values()))
    return Own(phase, seconds, max(0.0, seconds - max(0.0, worked)))


def _place(own: Own, outermost: Phase) -> str:
    name = own.phase.name
    return (
        name
        if not own.phase.parts
        else f"{name} outside of its parts"
        if own.phase is not outermost
        else "outside of its parts"
    )


def _fix(own: Own) -> str:
    if own.phase.name == "upload":
        return "tx.vram_resident, or tx.prefetch, which uploads ahead"
    if own.phase.tracked:
        return "the host reads from it, or hands it work late; tx.host_syncs() counts the reads by line"
    if own.phase.parts:
        return "name what the host does there, each a phase of its own; tx.host_syncs() counts what it reads"
    return "host-bound; tx.prefetch does it ahead in another thread"
