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
_ENTRY = re.compile(r".+-[0-9a-f]{64}(-cache|-atime)?")
_BESIDE = {".lockfile", "xla_gpu_kernel_cache_file"}
_AUTOTUNE = "xla_gpu_per_fusion_autotune_cache_dir"  # of XLA, which puts its results on fusions beside the entries
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class CompileCache(Report):
    """A folder of compiled programs.

    **Attributes:**

    - `folder`: where; None where the cache is off.
    - `exists`, `is_folder`, `is_writable`: of the folder; where it does not exist, whether it could be made.
    - `entries`, `bytes`: how many programs, and the bytes of all files of the cache.
    - `older`: how many of them were made before the installed jaxlib was. They are found only if that version was
        installed before.
    - `others`: paths in the folder that are not the cache's own.
    """

    folder: Path | None = None
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
        if not self.exists:
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
    if "://" in str(folder):  # of a cloud: not looked at
        return CompileCache(Path(folder), exists=True)
    path = Path(folder).expanduser()
    parent = next(p for p in (path, *path.absolute().parents) if p.exists())
    is_writable = os.access(parent, os.W_OK | os.X_OK)
    if not path.is_dir():
        return CompileCache(path, exists=path.exists(), is_folder=not path.exists(), is_writable=is_writable)
    own, others = _sorted_out(path)
    entries = [file for file in own if _ENTRY.fullmatch(file.name) and not file.name.endswith("-atime")]
    times = [file.stat().st_mtime for file in entries]
    return CompileCache(
        path,
        exists=True,
        is_writable=is_writable,
        entries=len(entries),
        bytes=sum(file.stat().st_size for file in own),
        older=sum(time < installed for time in times) if installed is not None else 0,
        others=tuple(sorted(str(other.relative_to(path)) for other in others)),
    )


def clear(folder: Path) -> CompileCache:
    """Delete the files of a cache, and nothing else.

    **Returns:** what was deleted.

    **Raises:** `FileNotFoundError` if it is no folder; `ValueError` if there is anything in it that is not the cache's
    own, and then nothing is deleted.
    """
    found = compile_cache(folder)
    if found.folder is None or not (found.exists and found.is_folder):
        raise FileNotFoundError(f"{folder} is no folder. Expected the folder of a compilation cache.")
    if found.others:
        raise ValueError(
            f"{folder} holds what is not the cache's own: {_some(found.others)}. Nothing was deleted. Expected "
            "files such as jit_step-<64 digits>-cache alone. Fix: move the others away, or delete by hand."
        )
    own, _ = _sorted_out(found.folder)
    for file in own:
        file.unlink(missing_ok=True)
    return found


def jaxlib_installed() -> float | None:
    """When the jaxlib of this Python was installed, in seconds since the epoch; None where that is not recorded."""
    try:
        found = metadata.distribution("jaxlib")
        return Path(str(found.locate_file(f"jaxlib-{found.version}.dist-info/RECORD"))).stat().st_mtime
    except (metadata.PackageNotFoundError, OSError):
        return None


def _sorted_out(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files that are the cache's own, and everything else."""
    own: list[Path] = []
    others: list[Path] = []
    for path in folder.iterdir():
        if path.name == _AUTOTUNE and path.is_dir() and not path.is_symlink():
            for inside in path.iterdir():
                (own if _is_file(inside) and inside.suffix == ".textproto" else others).append(inside)
        else:
            is_own = _is_file(path) and (path.name in _BESIDE or _ENTRY.fullmatch(path.name) is not None)
            (own if is_own else others).append(path)
    return own, others


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
