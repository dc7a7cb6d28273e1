"""`RunSpec`: the parameters of a run, kept beside it and compared at each restart. Not here: which values they may have
and how two of them are compared (`specs/values.py`), and how a file gets onto the disk (`specs/file.py`).
"""

import copy
import datetime as dt
import json
import os
import shlex
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import NoReturn
from typing import Self

from erythroxy_tx.errors import RunSpecError
from erythroxy_tx.runtime.specs import file as spec_file
from erythroxy_tx.runtime.specs.values import Change
from erythroxy_tx.runtime.specs.values import differences
from erythroxy_tx.runtime.specs.values import plain


class RunSpec(Mapping[str, Any]):
    """The parameters that a run is launched with. They travel with it and do not change silently.

        restart(path, parameters) runs  ⟺  parameters = those of the first launch

    The first launch writes them to a file, next to the checkpoints; a restart compares, and is refused where one
    differs, is missing, or is new. With nothing but the path, a restart takes all of them from the file. A `Mapping`
    whose values are attributes too; it cannot be changed, and what it hands out are copies.

    **Arguments:**

    - `path`: the file, JSON. Its folder is made if there is none.
    - `changed`: names of parameters, or of environment variables, that are meant to change, to appear or to go; the
        old value stays in the file's history. One that is the same after all is no error, so a script may be restarted.
    - `environment`: names of environment variables that belong to the run, set or not, and are compared as well. None:
        those that the file names.
    - `**parameters`: plain values: None, bool, int, float, str, lists and dicts of them. 1, 1.0 and True differ. Tuples
        become lists, and numpy scalars the number of Python that they are.

    **Attributes:** `path`; `environment`, a dict of the variables as the run has them, None where one is not set;
    `history`, a list of what was changed, each with `time`, `name`, `before`, `after`.

    **Raises:** `RunSpecError` naming each difference (`.changes`); for a file that is cut short or no run spec, which
    is never overwritten; for a first launch without parameters. `TypeError` or `ValueError` for a parameter that JSON
    would not give back as it is.

    >>> import pathlib, tempfile, erythroxy_tx as tx
    >>> path = pathlib.Path(tempfile.mkdtemp(dir=".")) / "spec.json"
    >>> spec = tx.RunSpec(path, batch=1024, gpu=0)
    >>> tx.RunSpec(path).batch
    1024
    >>> tx.RunSpec(path, batch=512)
    Traceback (most recent call last):
    erythroxy_tx.errors.RunSpecError: tx.RunSpec(...spec.json) was restarted with other parameters than the run has:
      batch: 1024 → 512
      gpu: 0 → not given
    Expected the same. Fix: tx.RunSpec(path) takes all from the file; if they are meant to change,
    changed=('batch', 'gpu').
    >>> tx.RunSpec(path, batch=512, gpu=0, changed=("batch",)).history[0]["before"]
    1024
    >>> path.unlink(), path.parent.rmdir()
    (None, None)
    """

    __slots__ = ("_environment", "_history", "_parameters", "_path")
    _path: Path
    _parameters: dict[str, Any]
    _environment: dict[str, str | None]
    _history: list[dict[str, Any]]

    def __init__(
        self,
        path: str | os.PathLike[str],
        /,
        *,
        changed: Sequence[str] = (),
        environment: Sequence[str] | None = None,
        **parameters: Any,
    ) -> None:
        where, title = Path(path).resolve(), _title(path)
        changed, names = _names("changed", changed), environment
        given = {name: plain(_checked_name(name), value) for name, value in parameters.items()}
        if names is not None:
            names = _names("environment", names)
        if both := sorted({*given} & {*(names or ())}):
            raise ValueError(
                f"{title} got {both[0]} as a parameter and as a variable of the environment. Expected one name for one "
                "thing, or changed= would mean both. Fix: another name for the parameter."
            )
        with spec_file.alone(where):
            found = spec_file.read(where, title)
            if found is None:
                if unknown := sorted({*changed} - {*given, *(names or ())}):
                    raise ValueError(f"{title} got changed={unknown}, which is no parameter of a run that begins now.")
                if not given:
                    raise RunSpecError(
                        f"{title} got no parameters, and there is no such file: a run begins with its parameters. Fix: "
                        "tx.RunSpec(path, batch=1024, …), or the path of a run that exists."
                    )
                first = {"parameters": given, "environment": _variables(names or ()), "history": []}
                found = first if spec_file.create(where, first) else spec_file.read(where, title) or first
            found = _compared(title, found, given, names, changed, where)
        _fill(self, where, found)

    @classmethod
    def read(cls, path: str | os.PathLike[str], /) -> "Self":
        """The parameters of a run that exists, for what starts it: this process's own environment is not compared.

        **Raises:** `RunSpecError` if there is no such file, or it is no run spec.
        """
        where = Path(path).resolve()
        found = spec_file.read(where, _title(path))
        if found is None:
            raise RunSpecError(f"{_title(path)}: there is no such file. Expected the path of a run that exists.")
        return _fill(object.__new__(cls), where, found)

    def change(self, /, **parameters: Any) -> "Self":
        """Change parameters that the run has, in its file, and keep the old values in the file's history.

        **Returns:** the new `RunSpec`; this one stays as it is.

        **Raises:** `RunSpecError` if the file is not what this one was made from; `ValueError` for a name that the run
        has not.
        """
        title = _title(self._path)
        if unknown := sorted(set(parameters) - set(self._parameters)):
            raise ValueError(
                f"{title}.change got {', '.join(unknown)}. Expected parameters of the run: "
                f"{', '.join(self._parameters)}. Fix: for a new one, tx.RunSpec(path, …, changed=({unknown[0]!r},))."
            )
        given = self._parameters | {name: plain(name, value) for name, value in parameters.items()}
        with spec_file.alone(self._path):
            found = spec_file.read(self._path, title)
            if found is None or differences(_state(self), found):
                raise RunSpecError(
                    f"{title}.change: the file was changed since it was read. Fix: read it again, tx.RunSpec(path)."
                )
            _record(found, differences(self._parameters, given), "parameters", given, self._path)
        return _fill(object.__new__(type(self)), self._path, found)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def environment(self) -> dict[str, str | None]:
        return dict(self._environment)

    @property
    def history(self) -> list[dict[str, Any]]:
        return copy.deepcopy(self._history)

    def argv(self) -> list[str]:
        """The parameters as arguments for a child process, `--batch=1024`: a str as it is, all else in JSON."""
        return [f"--{n}={v if isinstance(v, str) else json.dumps(v)}" for n, v in self._parameters.items()]

    def __getitem__(self, name: str) -> Any:
        return copy.deepcopy(self._parameters[name])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._parameters:
            raise AttributeError(f"the run has no parameter {name!r}. Expected one of {', '.join(self)}.")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(
            f"{name} = {value!r}: the parameters of a run do not change. Fix: spec = spec.change({name}={value!r})."
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"del {name}: the parameters of a run do not change.")

    def __repr__(self) -> str:
        return f"tx.RunSpec({str(self._path)!r}, {', '.join(f'{n}={v!r}' for n, v in self._parameters.items())})"

    def __reduce__(self) -> Any:
        return _copied, (type(self), self._path, _state(self))


def _fill(spec: Any, path: Path, found: dict[str, Any]) -> Any:
    for name, value in (("_path", path), *((f"_{name}", found[name]) for name in spec_file.FIELDS)):
        object.__setattr__(spec, name, value)
    return spec


def _copied(cls: type[RunSpec], path: Path, found: dict[str, Any]) -> Any:
    return _fill(object.__new__(cls), path, found)


def _state(spec: RunSpec) -> dict[str, Any]:
    return {"parameters": dict(spec._parameters), "environment": spec.environment, "history": spec.history}


def _title(path: Any) -> str:
    return f"tx.RunSpec({os.fspath(path)})"


def _compared(
    title: str,
    found: dict[str, Any],
    given: dict[str, Any],
    names: Sequence[str] | None,
    changed: Sequence[str],
    where: Path,
) -> dict[str, Any]:
    """What the run has, with what is meant to change changed; an error where anything else differs."""
    has = {"parameters": found["parameters"], "environment": found["environment"]}
    now = {
        "parameters": given or has["parameters"],
        "environment": _variables(has["environment"] if names is None else names),
    }
    known = {name for part in (*has.values(), *now.values()) for name in part}
    known |= {entry["name"] for entry in found["history"]}  # a script that took one away may be restarted too
    if unknown := sorted(set(changed) - known):
        raise ValueError(
            f"{title} got changed={tuple(changed)!r}, and the run has no {', '.join(unknown)}. Expected some of "
            f"{', '.join(sorted(known))}."
        )
    changes = {part: differences(has[part], now[part]) for part in has}
    silent = [change for each in changes.values() for change in each if change.name not in changed]
    if silent:
        raise _refused(title, silent, [change for change in changes["environment"] if change in silent])
    for part, each in changes.items():
        if each:
            _record(found, each, part, now[part], where)
    return found


def _record(found: dict[str, Any], changes: list[Change], part: str, now: dict[str, Any], where: Path) -> None:
    """Write new values, and the old ones into the history."""
    before, time = found[part], dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    for name in dict.fromkeys(change.name for change in changes):
        entry = {"time": time, "name": name}
        entry |= {when: side[name] for when, side in (("before", before), ("after", now)) if name in side}
        found["history"].append(entry)
    found[part] = now
    spec_file.replace(where, found)


def _refused(title: str, changes: list[Change], variables: list[Change]) -> RunSpecError:
    lines = [f"  {_of_variable(change) if change in variables else change.told}" for change in changes]
    names = tuple(dict.fromkeys(change.name for change in changes))
    exports = [_as_command(change) for change in variables if change.kind == "changed"]
    fixes = ["tx.RunSpec(path) takes all from the file"] if len(variables) < len(changes) else []
    fixes += [f"start it in the environment of the run ({'; '.join(exports)})"] if exports else []
    error = RunSpecError(
        f"{title} was restarted with other parameters than the run has:\n" + "\n".join(lines) + "\nExpected the same. "
        f"Fix: {'; '.join([*fixes, f'if they are meant to change, changed={names!r}'])}."
    )
    error.changes = tuple(changes)
    return error


def _of_variable(change: Change) -> str:
    return f"the variable {change.told}".replace("None", "not set")


def _as_command(change: Change) -> str:
    return f"unset {change.name}" if change.before is None else f"export {change.name}={shlex.quote(change.before)}"


def _variables(names: Sequence[str] | dict[str, Any]) -> dict[str, Any]:
    return {name: os.environ.get(name) for name in names}


def _names(argument: str, names: Any) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"tx.RunSpec got {argument}={names!r}. Expected a tuple of names. Fix: {argument}=('batch',).")
    return list(names)


def _checked_name(name: str) -> str:
    if name.startswith("_") or not name.isidentifier() or name in dir(RunSpec):
        raise ValueError(
            f"tx.RunSpec got a parameter named {name!r}, which is no name for an attribute of it, or has a meaning "
            f"already. Fix: another name, such as run_{name.strip('_-')}."
        )
    return name
