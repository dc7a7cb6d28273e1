"""Places on the disk: what a name, a descriptor or a pattern stands for, and whether it is on a disk at all."""

import fnmatch
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from typing import NamedTuple

_NO_DISK = ("/dev/", "/proc/", "/sys/")
_WILD = frozenset("*?[")


class Place(NamedTuple):
    """One place: `given` as it was named, but absolute, and `real` behind all links."""

    given: str
    real: str

    @property
    def is_on_disk(self) -> bool:
        """Whether it is a file or a folder, or nothing yet; no pipe or device, and nothing that the kernel makes up."""
        if f"{self.real}/".startswith(_NO_DISK):
            return False
        try:
            mode = Path(self.real).stat().st_mode
        except OSError:
            return self.real.startswith("/") and not self.real.startswith("/memfd:")
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode)

    @property
    def exists(self) -> bool:
        """Whether there is anything."""
        return os.path.lexists(self.real)

    @property
    def nbytes(self) -> int:
        """The size of a file, 0 of anything else."""
        path = Path(self.real)
        return path.stat().st_size if path.is_file() else 0

    def is_in(self, allowed: Iterable[str]) -> bool:
        """Whether it is one of these places, is below one, or matches a pattern."""
        return any(_is_below(path, each) for each in allowed for path in {self.given, self.real})


def place(path: Any, folder: Any = None) -> Place:
    """The place of a path or a descriptor, as Python takes them; a relative path is in `folder`, a descriptor."""
    if isinstance(path, int):
        return Place(link(path), link(path))
    name = os.fsdecode(path) if path is not None else "."
    if isinstance(folder, int) and folder >= 0:
        name = f"{link(folder)}/{name}"
    return Place(os.path.abspath(name), os.path.realpath(name))  # noqa: PTH100  # of which pathlib keeps `..`


def link(descriptor: int | str) -> str:
    """What a descriptor is open on: a path, or `pipe:[...]` and kin."""
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return f"descriptor {descriptor}"


def allowed(given: Any, asked_by: str) -> tuple[str, ...]:
    """The places that a user names, as absolute paths: one or several paths, folders, patterns and open files.

    **Raises:** `TypeError` for anything else.
    """
    found: list[str] = []
    for each in given if isinstance(given, list | tuple | set | frozenset) else (given,):
        if callable(getattr(each, "fileno", None)):
            found.append(link(each.fileno()))
        elif isinstance(each, str | bytes | os.PathLike) and os.fspath(each):
            found += place(Path(os.fsdecode(each)).expanduser())
        else:
            raise TypeError(
                f"{asked_by} got allow={each!r}. Expected a path, a folder, a pattern such as 'logs/*.txt', an open "
                "file, or a list of them."
            )
    return tuple(dict.fromkeys(found))


def _is_below(path: str, allowed: str) -> bool:
    if path == allowed or path.startswith(allowed.rstrip("/") + "/"):
        return True
    if not _WILD & set(allowed):
        return False
    return any(fnmatch.fnmatchcase(str(each), allowed) for each in (path, *Path(path).parents))
