"""The file of a run spec: read whole or refused, written whole or not at all. Not here: what is in it."""

import contextlib
import errno
import json
import logging
import math
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from erythroxy_tx.errors import RunSpecError
from erythroxy_tx.runtime.specs.values import plain

try:
    import fcntl
except ImportError:  # not on Windows, where two that change one run at a time may lose a line of its history
    fcntl = None  # type: ignore[assignment]

_LOG = logging.getLogger(__name__.partition(".")[0])
_FORMAT, _VERSION = "erythroxy_tx.RunSpec", 1
FIELDS = {"parameters": dict, "environment": dict, "history": list}
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EOPNOTSUPP)
_EMPTIED = {"/tmp", "/dev/shm", "/run", tempfile.gettempdir()}  # noqa: S108  # only compared with


def read(path: Path, title: str) -> dict[str, Any] | None:
    """The fields of the file, or None if there is none.

    **Raises:** `RunSpecError` for a file that is not all of what was written here.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(title, str(error)) from error
    try:
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_object)
    except ValueError as error:
        raise _refusal(title, f"it is cut short or no JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise _refusal(title, f'it has no "format": "{_FORMAT}"')
    if found.get("version") != _VERSION or type(found["version"]) is not int:
        raise _refusal(title, f"it is of version {found.get('version')!r}, and this erythroxy_tx reads {_VERSION}")
    if set(found) != {"format", "version", *FIELDS} or not all(type(found[n]) is kind for n, kind in FIELDS.items()):
        raise _refusal(title, f"it has the fields {', '.join(found)}, in place of {', '.join(FIELDS)}")
    return {name: found[name] for name in FIELDS}


def create(path: Path, fields: dict[str, Any]) -> bool:
    """Write a file that is not there yet; False if somebody else was quicker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if any(path.is_relative_to(Path(folder).resolve()) for folder in _EMPTIED):
        _LOG.warning("tx.RunSpec writes %s, which a reboot wipes. Fix: a path next to the checkpoints.", path)
    with _written(path, fields) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create_without_links(path, fields)
    _sync_folder(path)
    return True


def replace(path: Path, fields: dict[str, Any]) -> None:
    """Write a file in the place of another."""
    with _written(path, fields) as temporary:
        temporary.replace(path)
    _sync_folder(path)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes that read and write the same file out, where the system can."""
    folder = next(each for each in path.parents if each.is_dir())
    if fcntl is None:
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: what is created is created once all the same
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_UN)  # a fork has the descriptor too, and would keep the lock
        os.close(held)


@contextlib.contextmanager
def _written(path: Path, fields: dict[str, Any]) -> Iterator[Path]:
    """A file beside it with all of the text, on the disk, which is gone afterwards."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")
    try:
        _write(temporary, fields)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, fields: dict[str, Any]) -> None:
    plain("the file", fields)
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **fields}, indent=2, allow_nan=False) + "\n"
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _create_without_links(path: Path, fields: dict[str, Any]) -> bool:
    try:
        _write(path, fields)
    except FileExistsError:
        return False
    _sync_folder(path)
    return True


def _sync_folder(path: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _finite(number: str) -> float:
    return found if math.isfinite(found := float(number)) else _refuse(number)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name is there twice among {', '.join(name for name, _ in pairs)}")
    return found


def _refusal(title: str, why: str) -> RunSpecError:
    return RunSpecError(
        f"{title}: {why}. Expected a file that tx.RunSpec wrote. It was not touched. Fix: put a copy of it back, or "
        "move it away and launch the run with all of its parameters."
    )
