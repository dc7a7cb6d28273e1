"""A phase as an SVG: a lane for each phase and one for the device, over time. Not here: the words."""

from html import escape

from erythroxy_tx.runtime.phases.record import Phase
from erythroxy_tx.runtime.phases.table import percent
from erythroxy_tx.runtime.phases.table import told
from erythroxy_tx.runtime.phases.table import walk

_WIDTH, _LEFT, _RIGHT, _TOP, _LANE = 860, 210, 16, 40, 22
_LANES = 30
_SLICES = 256
_LEVELS = 8  # of opacity
_TICKS = 5
_LONGEST = 26  # characters of a name
# Classes of its own, as a style in a page is one for all of it.
_STYLE = """
.tx-phase .paper{fill:#ffffff}.tx-phase text{fill:#1f2328;font:13px system-ui,sans-serif}
.tx-phase .host{fill:#2f6fbf}.tx-phase .device{fill:#1f8a4c}.tx-phase .line{stroke:#d0d7de}
@media (prefers-color-scheme:dark){.tx-phase .paper{fill:#12161c}.tx-phase text{fill:#e6edf3}
.tx-phase .host{fill:#6ba6f2}.tx-phase .device{fill:#4cc27e}.tx-phase .line{stroke:#39424e}}
"""


def picture(phase: Phase) -> str:
    """The SVG, valid by itself and inside of a page."""
    timeline, busy = phase._root._timeline, phase.busy
    lanes = [("  " * (depth - 1) + each.name, each, "host") for depth, each in walk(phase) if depth][:_LANES]
    known = "unknown" if busy is None else f"at most {percent(busy)}"
    lanes.append((f"device, busy {known}", "device", "device"))  # type: ignore[arg-type]
    height = _TOP + _LANE * len(lanes) + 30
    drawn = [f'<rect class="paper" width="{_WIDTH}" height="{height}"/>']
    drawn.append(_text(12, 24, f"{phase.name}: {told(phase.seconds)}"))
    room = _WIDTH - _LEFT - _RIGHT
    end = timeline.end if timeline is not None else phase.seconds
    for tick in range(_TICKS + 1):
        x = _LEFT + room * tick / _TICKS
        drawn.append(f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{height - 26}"/>')
        anchor = "start" if not tick else "end" if tick == _TICKS else "middle"
        drawn.append(_text(x, height - 9, told(end * tick / _TICKS), anchor))
    for row, (name, lane, kind) in enumerate(lanes):
        y = _TOP + _LANE * row
        drawn.append(_text(12 + 6 * (len(name) - len(name.lstrip())), y + 15, _short(name.lstrip())))
        if timeline is not None:
            lengths = timeline.lengths(_SLICES)
            shares = [
                w / length if length else 0.0
                for w, length in zip(timeline.windows(lane, _SLICES), lengths, strict=True)
            ]
            drawn += _bars(shares, y + 2, room, kind)
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    label = escape(f"Timeline of {phase.name}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tx-phase" {size} role="img" aria-label="{label}">'
        f"<style>{_STYLE}</style>{''.join(drawn)}</svg>"
    )


def _bars(shares: list[float], y: float, room: float, kind: str) -> list[str]:
    """Neighbours of one opacity are one bar."""
    levels = [max(1, min(_LEVELS, round(share * _LEVELS))) if share > 0 else 0 for share in shares]
    bars, begin = [], 0
    for at in range(1, len(levels) + 1):
        if at < len(levels) and levels[at] == levels[begin]:
            continue
        if levels[begin]:
            x, width = _LEFT + room * begin / len(levels), room * (at - begin) / len(levels)
            opacity = f' fill-opacity="{levels[begin] / _LEVELS:.3g}"' if levels[begin] < _LEVELS else ""
            bars.append(f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_LANE - 5}"{opacity}/>')
        begin = at
    return bars


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
