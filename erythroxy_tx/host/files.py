"""Small files that the kernel answers with. `root` is the root of the file system, another one in tests."""

from pathlib import Path

ROOT = Path("/")


def text(path: Path) -> str | None:
    """What a file holds, or None where it is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def number(path: Path) -> int | None:
    """The whole number that a file holds; None where there is none, which is also how the kernel writes `max`."""
    found = (text(path) or "").strip()
    return int(found) if found.isdecimal() else None


def counters(path: Path) -> dict[str, int]:
    """The counters of a file with lines `name count`; empty where it cannot be read."""
    pairs = (line.split() for line in (text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
