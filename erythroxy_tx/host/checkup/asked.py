"""What JAX says of itself when another process asks: which version, what it read, which devices. A JAX that is broken,
hangs in a driver, or ends its process is an answer too.

The other process starts the backend without reserving memory on a GPU; it holds its context there while it is asked.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any
from typing import Literal

from erythroxy_tx.host.xla_flags import flags_of
from erythroxy_tx.host.xla_flags import split

TIMEOUT = 60.0  # seconds; a machine with many GPUs takes up to 20 to start them all
Outcome = Literal["works", "missing", "no import", "no start", "no answer", "ended", "not asked"]

_MARK = "erythroxy says "
_PROGRAM = """
import enum, json, os, sys
def say(**facts):
    print("\\nMARK" + json.dumps(facts, default=str), flush=True)
def written(value):
    return value.name.lower() if isinstance(value, enum.Enum) else value
def told_by(error):
    return f"{type(error).__name__}: {error}".removesuffix(": ")
from importlib import metadata
say(plugins={e.name: e.dist.version if e.dist else "" for e in metadata.entry_points(group="jax_plugins")})
try:
    say(jaxlib=metadata.version("jaxlib"))
except metadata.PackageNotFoundError:
    pass
stage = "import"
try:
    import jax
    say(version=jax.__version__, config={name: written(value) for name, value in jax.config.values.items()})
    stage = "refused"
    from jaxlib import xla_client
    told = getattr(xla_client, "generate_pjrt_gpu_plugin_options", None)
    say(options=told() if told else {})
except BaseException as error:
    say(**{stage: told_by(error)}, name=getattr(error, "name", None))
if stage == "refused" and "start" in sys.argv:
    for name in [name for name in os.environ if name.startswith(("XLA_CLIENT_", "XLA_PYTHON_CLIENT_"))]:
        del os.environ[name]
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    try:
        devices = jax.devices()
        say(devices=[str(device) for device in devices], kinds=[device.device_kind for device in devices])
        say(backend=jax.default_backend())
    except BaseException as error:
        say(start=told_by(error))
""".replace("MARK", _MARK)

_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: (.*)")
_BAD_VALUE = re.compile(r"Couldn't interpret value (.*) for flag (\w+)\.")
_NO_FILE = re.compile(r'Could not open file "([^"]*)" to read flags')


@dataclasses.dataclass(frozen=True)
class BadFlag:
    """A flag that ends the process: `kind` is `"unknown"`, `"value"`, or `"file"`."""

    flag: str
    kind: Literal["unknown", "value", "file"]


@dataclasses.dataclass(frozen=True)
class Jax:
    """What is known of JAX.

    **Attributes:**

    - `outcome`: how far it got: `"works"`, `"missing"`, `"no import"`, `"no start"`, `"no answer"`, `"ended"`,
        `"not asked"` where no other process of Python can be started.
    - `error`: what it said then.
    - `asked`: `"another process"`, or `"this process"` where a backend runs in it already.
    - `version`, `jaxlib`: None where unknown.
    - `plugins`: the versions of the plugins for devices, by name.
    - `backend`, `devices`: the default backend and its devices.
    - `config`: the values of `jax.config` in a process that has only imported JAX.
    - `config_here`: those of this process; None where it has not imported JAX.
    - `options`: what the GPU client would be given, and `options_error` why it would refuse.
    - `bad_flags`: the flags that end a process.
    """

    outcome: Outcome
    error: str = ""
    asked: Literal["this process", "another process"] = "another process"
    version: str | None = None
    jaxlib: str | None = None
    plugins: dict[str, str] = dataclasses.field(default_factory=dict)
    backend: str | None = None
    devices: tuple[str, ...] = ()
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    config_here: dict[str, Any] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    options_error: str = ""
    bad_flags: tuple[BadFlag, ...] = ()


def ask(environ: Mapping[str, str], *, start: bool = True, timeout: float = TIMEOUT) -> Jax:
    """Ask another process with this environment; where `start`, it starts the backend too.

    Flags that end it are taken away, one kind after the other, until it goes on or none is left.
    """
    if not sys.executable or getattr(sys, "frozen", False):  # then it would start the program again, not Python
        return Jax("not asked", "this program has no Python of its own to ask with")
    environ, bad = dict(environ), list[BadFlag]()
    while True:
        try:
            told, status, errors = _run(environ, start=start, timeout=timeout)
        except OSError as error:  # no memory for a process, or no right to start one
            return Jax("not asked", str(error), bad_flags=tuple(bad))
        found = _bad_flags(errors, environ) if status else []
        if not found:
            return dataclasses.replace(_read(told, status, errors, timeout), bad_flags=tuple(bad))
        bad += found
        environ["XLA_FLAGS"] = _without(environ["XLA_FLAGS"], found)


def _run(environ: dict[str, str], *, start: bool, timeout: float) -> tuple[dict[str, Any], int | None, str]:
    """What was said, the exit status, None where it did not end in time, and the error output."""
    command = [sys.executable, "-P", "-c", _PROGRAM, *(["start"] if start else [])]
    paths = [path for path in sys.path if isinstance(path, str) and path]  # it finds what this one finds
    environ = {**environ, "PYTHONPATH": os.pathsep.join(paths)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)  # noqa: S603
    status: int | None = None
    try:
        out, errors = process.communicate(timeout=timeout)
        status = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            out, errors = process.communicate(timeout=1.0)
        except subprocess.TimeoutExpired as late:  # what hangs in a driver does not end
            out, errors = late.stdout or b"", late.stderr or b""
    except BaseException:  # such as Ctrl-C
        process.kill()
        raise
    told: dict[str, Any] = {}
    for line in out.decode(errors="replace").splitlines():
        if line.startswith(_MARK):
            told |= json.loads(line.removeprefix(_MARK))
    return told, status, errors.decode(errors="replace")


def _read(told: dict[str, Any], status: int | None, errors: str, timeout: float) -> Jax:
    outcome: Outcome = "works"
    error = ""
    if "backend" in told:
        pass
    elif status is None:
        outcome, error = "no answer", f"no answer in {timeout:g} s"
    elif "import" in told:
        is_missing = told["import"].startswith("ModuleNotFoundError") and told["name"] == "jax"
        outcome, error = "missing" if is_missing else "no import", told["import"]
    elif "start" in told:
        outcome, error = "no start", told["start"]
    elif status != 0:
        outcome, error = "ended", _last_line(errors) or f"exit status {status}"
    return Jax(
        outcome,
        error,
        version=told.get("version"),
        jaxlib=told.get("jaxlib"),
        plugins=told.get("plugins", {}),
        backend=told.get("backend"),
        devices=tuple(told.get("devices", ())),
        config=told.get("config", {}),
        options=told.get("options", {}),
        options_error=told.get("refused", ""),
    )


def _bad_flags(errors: str, environ: dict[str, str]) -> list[BadFlag]:
    """The flags that the error output names, if the environment has any."""
    if not environ.get("XLA_FLAGS"):
        return []
    unknown = [flag for names in _UNKNOWN.findall(errors) for flag in _named(names, environ["XLA_FLAGS"])]
    values = [f"--{name}={value}" for value, name in _BAD_VALUE.findall(errors)]
    files = _NO_FILE.findall(errors)
    kinds: list[tuple[list[str], Literal["unknown", "value", "file"]]] = [
        (unknown, "unknown"),
        (values, "value"),
        (files, "file"),
    ]
    return [BadFlag(flag, kind) for flags, kind in kinds for flag in flags]


def _named(names: str, flags: str) -> list[str]:
    """The flags that are listed with a space between, of which each may hold spaces too."""
    given = [flag.plain for flag in flags_of(flags)[0] if f" {flag.plain} " in f" {names} "]
    return given or names.split()


def _without(flags: str, bad: list[BadFlag]) -> str:
    """The other flags; none where those that are bad are not written out, as in a file."""
    gone = {flag.flag.lstrip("-") for flag in bad}
    given, _ = split(flags)
    kept = [flag.written for flag in given if flag.plain.lstrip("-") not in gone]
    return " ".join(kept) if len(kept) < len(given) else ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
