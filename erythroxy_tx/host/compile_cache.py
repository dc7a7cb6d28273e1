"""The folder of JAX's persistent compilation cache: what is in it, and which files are its own. Not here: how it fared
in this process (`checkup/counts.py`), and what is wrong with it (`checkup/cache.py`).

An entry is `<name of the program>-<sha256>-cache`. Neither its name nor its content tells which versions made it: they
are in the hash, with the flags of XLA and the device. So only its age is told.
"""

import dataclasses
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from erythroxy_tx.host.report import Line
from erythroxy_tx.host.report import Report
from erythroxy_tx.units import format_bytes

USUAL = ("~/.cache/jax", ".jax_cache", ".xla_cache")  # where programs have put it
_ENTRY = re.compile(r".+-[0-9a-f]{64}-(cache|atime)")  # without its end it could be a file of anyone
_LOCK = ".lockfile"  # stays: a run that holds it would no longer keep others out
_BESIDE = {_LOCK, "xla_gpu_kernel_cache_file"}
_AUTOTUNE = "xla_gpu_per_fusion_autotune_cache_dir"  # of XLA, which puts its results on fusions beside the entries,
_UNFINISHED = "tmp"  # and writes them in a folder inside of that first
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class CompileCache(Report):
    """A folder of compiled programs.

    **Attributes:**

    - `folder`: where; a str where it is of a cloud, which is not looked at; None where the cache is off.
    - `exists`, `is_folder`, `is_writable`: of the folder; where it does not exist, whether it could be made.
    - `entries`, `bytes`: how many programs, and the bytes of all files of the cache.
    - `older`: how many of them were made before the installed jaxlib was. They are found only if that version was
        installed before.
    - `others`: paths in the folder that are not the cache's own.
    """

    folder: Path | str | None = None
    exists: bool = False
    is_folder: bool = True
    is_writable: bool = True
    entries: int = 0
    bytes: int = 0
    older: int = 0
    others: tuple[str, ...] = ()

    def lines(self) -> Iterator[Line]:
        if self.folder is None:
            yield Line("compilation cache: off", "dim")
            return
        yield Line(f"compilation cache: {self.folder}", "title")
        if isinstance(self.folder, str):
            yield Line("  of a cloud, and not looked at")
        elif not self.exists:
            yield Line("  not there yet: made with the first program that is stored")
        elif not self.is_folder:
            yield Line("  no folder", "bad")
        else:
            older = f", {self.older} older than the installed jaxlib" if self.older else ""
            yield Line(f"  {self.entries} programs, {format_bytes(self.bytes)}{older}")
        if self.others:
            yield Line(f"  not the cache's own: {_some(self.others)}", "warn")


def compile_cache(folder: str | Path | None, *, installed: float | None = None) -> CompileCache:
    """Look at a folder of compiled programs. `installed` is when jaxlib was, in seconds since the epoch."""
    if not folder:
        return CompileCache()
    if "://" in str(folder):
        return CompileCache(str(folder), exists=True)
    path = Path(folder)  # as JAX does, which takes ~ for a name
    if not os.path.isdir(path):  # noqa: PTH112  # a folder that cannot be entered is no exception
        exists = os.path.lexists(path)
        return CompileCache(path, exists=exists, is_folder=not exists, is_writable=_can_be_made(path))
    try:
        own, others = _sorted_out(path)
    except PermissionError:  # JAX cannot look into it either
        return CompileCache(path, exists=True, is_writable=False)
    return _told(path, own, others, installed)


def clear(folder: str | Path) -> CompileCache:
    """Delete the files of a cache, and nothing else.

    **Returns:** what was deleted.

    **Raises:** `FileNotFoundError` if it does not exist or is no folder; `ValueError` if there is anything in it that
    is not the cache's own, and then nothing is deleted.
    """
    path = Path(folder)
    if "://" in str(folder) or not path.is_dir():
        is_there = "://" in str(folder) or os.path.lexists(path)
        lack = "is no folder of this machine" if is_there else "does not exist"
        raise FileNotFoundError(f"{folder} {lack}. Expected the folder of a compilation cache.")
    own, others = _sorted_out(path)
    found = _told(path, own, others, None)
    if others:
        raise ValueError(
            f"{folder} holds what is not the cache's own: {_some(found.others)}. Nothing was deleted. Expected "
            "files such as jit_step-<64 digits>-cache alone. Fix: move the others away, or delete by hand."
        )
    for file in own:
        if file.name != _LOCK:
            file.unlink(missing_ok=True)
    return found


def jaxlib_installed() -> float | None:
    """When the jaxlib of this Python was installed, in seconds since the epoch; None where that is not recorded."""
    try:
        found = metadata.distribution("jaxlib")
        return Path(str(found.locate_file(f"jaxlib-{found.version}.dist-info/RECORD"))).stat().st_mtime
    except (metadata.PackageNotFoundError, OSError):
        return None


def _told(path: Path, own: list[Path], others: list[Path], installed: float | None) -> CompileCache:
    stats = {file: stat for file in own if (stat := _stat(file)) is not None}
    entries = [stat for file, stat in stats.items() if file.name.endswith("-cache")]
    return CompileCache(
        path,
        exists=True,
        is_writable=os.access(path, os.W_OK | os.X_OK),
        entries=len(entries),
        bytes=sum(stat.st_size for stat in stats.values()),
        older=sum(stat.st_mtime < installed for stat in entries) if installed is not None else 0,
        others=tuple(sorted(str(other.relative_to(path)) for other in others)),
    )


def _stat(file: Path) -> os.stat_result | None:
    """None where a run has deleted it since."""
    try:
        return file.stat()
    except FileNotFoundError:
        return None


def _can_be_made(path: Path) -> bool:
    there = next(p for p in path.parents if os.path.exists(p))  # noqa: PTH110  # as above
    return os.access(there, os.W_OK | os.X_OK)


def _sorted_out(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files that are the cache's own, and everything else."""
    own: list[Path] = []
    others: list[Path] = []
    results = folder / _AUTOTUNE
    for place in (folder, results, results / _UNFINISHED):
        for path in place.iterdir() if place == folder or _is_folder(place) else ():
            if path in {results, results / _UNFINISHED} and _is_folder(path):
                continue
            is_own = path.suffix == ".textproto" if place != folder else _is_of_cache(path.name)
            (own if is_own and _is_file(path) else others).append(path)
    return own, others


def _is_of_cache(name: str) -> bool:
    return name in _BESIDE or _ENTRY.fullmatch(name) is not None


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
