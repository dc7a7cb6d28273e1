"""`no_disk_io`: what Python announces is stopped, what it does not is found at the end, and what is no disk passes."""

import asyncio
import contextlib
import contextvars
import glob
import importlib
import logging
import mmap
import os
import pickle
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import traceback
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx
from erythroxy_tx.guards import disk
from erythroxy_tx.guards import unseen
from erythroxy_tx.guards.io_counts import counts

BIG = 2**18  # bytes, which no wake-up comes to
LINUX = pytest.mark.skipif(counts() is None, reason="the system does not count what a thread reads")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    monkeypatch.chdir(tmp_path)
    if "pipe" not in request.node.name:  # a process that another test left, and a pipe of pytest's, would excuse reads
        monkeypatch.setattr(unseen, "_hears_others", lambda _: False)
    np.save("x.npy", np.zeros(BIG, np.uint8))
    np.savez("x.npz", x=np.zeros(BIG, np.uint8))
    Path("folder").mkdir()
    return tmp_path


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is open in the process only the files of the test: a session around it has others."""
    listed = unseen._open_files
    monkeypatch.setattr(unseen, "_open_files", lambda: (f for f in listed() if f.place.real.startswith(str(tmp_path))))


@pytest.fixture
def on_disk() -> None:
    """Nothing that is kept in memory alone, as a tmpfs is: its pages go nowhere."""
    before = counts()
    Path("probe").write_bytes(bytes(BIG))
    after = counts()
    if before is None or after is None or after.dirtied - before.dirtied < BIG:
        pytest.skip("the system does not count what goes to this disk")


READS: dict[str, Callable[[], Any]] = {
    "open": lambda: open("x.npy"),  # noqa: PTH123, SIM115
    "Path.read_bytes": lambda: Path("x.npy").read_bytes(),
    "os.open": lambda: os.open("x.npy", os.O_RDONLY),
    "bytes": lambda: os.open(b"x.npy", os.O_RDONLY),
    "np.load": lambda: np.load("x.npy"),
    "np.load, mapped": lambda: np.load("x.npy", mmap_mode="r"),
    "np.fromfile": lambda: np.fromfile("x.npy", np.uint8),
    "jnp.load": lambda: jnp.load("x.npy"),
    "os.listdir": os.listdir,
    "os.scandir": os.scandir,
    "glob": lambda: glob.glob("*.npy"),  # noqa: PTH207
    "iterdir": lambda: list(Path("folder").iterdir()),
}
WRITES: dict[str, Callable[[], Any]] = {
    "open": lambda: open("new", "w"),  # noqa: PTH123, SIM115
    "append": lambda: open("x.npy", "ab"),  # noqa: PTH123, SIM115
    "update": lambda: open("x.npy", "r+b"),  # noqa: PTH123, SIM115
    "os.open": lambda: os.open("new", os.O_CREAT | os.O_WRONLY),
    "write_text": lambda: Path("new").write_text(""),
    "np.save": lambda: np.save("new.npy", np.zeros(1)),
    "np.savez": lambda: np.savez("new.npz", x=np.zeros(1)),
    "mapped": lambda: np.lib.format.open_memmap("new.npy", "w+", np.uint8, (1,)),
    "sqlite3": lambda: sqlite3.connect("new.db"),
    "mkdir": lambda: Path("new").mkdir(),
    "remove": lambda: Path("x.npy").unlink(),
    "rename": lambda: Path("x.npy").rename("new"),
    "rmdir": lambda: Path("folder").rmdir(),
    "rmtree": lambda: shutil.rmtree("folder"),
    "symlink": lambda: Path("new").symlink_to("x.npy"),
    "link": lambda: Path("new").hardlink_to("x.npy"),
    "truncate": lambda: os.truncate("x.npy", 1),
    "chmod": lambda: Path("x.npy").chmod(0o600),
    "utime": lambda: os.utime("x.npy"),
    "TemporaryFile": tempfile.TemporaryFile,
    "mkdtemp": tempfile.mkdtemp,
    "FileHandler": lambda: logging.FileHandler("new.log"),
}
ACTS = {"read": READS, "write": WRITES}


KINDS = [pytest.param(kind, act, id=f"{kind} {name}") for kind in ACTS for name, act in ACTS[kind].items()]


@pytest.mark.parametrize(("kind", "act"), KINDS)
def test_what_is_announced_is_stopped(kind: str, act: Callable[[], Any], here: Path) -> None:
    before = sorted((path, path.stat().st_size) for path in here.rglob("*"))
    told = rf"(?s)with tx.no_disk_io\(\): {kind} of '.*Stopped before"
    with pytest.raises(tx.DiskIOError, match=told) as info, tx.no_disk_io():
        act()
    error = info.value
    assert (error.kind, Path(error.path).is_absolute()) == (kind, True)
    assert "test_no_disk_io.py" in error.line
    assert sorted((path, path.stat().st_size) for path in here.rglob("*")) == before


def test_the_error_has_path_line_and_bytes(here: Path) -> None:
    @tx.no_disk_io
    def step():
        return np.load("x.npy")

    told = r"(?s)tx.no_disk_io\(.*step\): read of .*256.1 KiB \(open\) at .*tx.prefetch"
    with pytest.raises(tx.DiskIOError, match=told) as info:
        step()
    line = step.__wrapped__.__code__.co_firstlineno + 2
    assert (info.value.path, info.value.nbytes) == (str(here / "x.npy"), (here / "x.npy").stat().st_size)
    assert f"test_no_disk_io.py:{line} (" in info.value.line
    assert isinstance(info.value, RuntimeError)


@LINUX
def test_descriptors_that_were_open_are_found_at_the_end(own_files: None, here: Path) -> None:
    for _ in range(2):
        with np.load("x.npz") as lazy, pytest.raises(tx.DiskIOError, match="KiB were read by this thread") as info:
            tx.no_disk_io(lambda: lazy["x"])()
        assert (info.value.kind, info.value.path) == ("read", str(here / "x.npz"))
        assert BIG <= info.value.nbytes < 1.1 * BIG
        assert info.value.result.size == BIG
    with Path("x.npy").open("rb") as file, pytest.raises(tx.DiskIOError, match=r"x\.npy"), tx.no_disk_io():
        file.read()


@LINUX
def test_a_descriptor_that_is_wrapped_or_mapped_is_its_file(here: Path) -> None:
    with Path("x.npy").open("rb") as file:
        for act in (lambda f: os.fdopen(f.fileno(), closefd=False), lambda f: mmap.mmap(f.fileno(), 9, access=1)):
            with pytest.raises(tx.DiskIOError, match="Stopped before") as info, tx.no_disk_io():
                act(file)
            assert info.value.path == str(here / "x.npy")


@LINUX
def test_writes_through_open_descriptors_and_maps(on_disk: None, own_files: None, here: Path) -> None:
    with Path("new").open("wb", buffering=0) as file, pytest.raises(tx.DiskIOError, match="written by this") as info:
        tx.no_disk_io(file.write)(bytes(BIG))
    assert (info.value.kind, info.value.path) == ("write", str(here / "new"))
    mapped = np.lib.format.open_memmap("map.npy", "w+", np.uint8, (BIG,))
    with pytest.raises(tx.DiskIOError, match="written by this thread"), tx.no_disk_io():
        mapped[:] = 1


@LINUX
def test_pages_of_mapped_files(on_disk: None, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """They count once they are more than all code, which comes from the disk in the same way: here that is nothing."""
    with Path("x.npy").open("r+b") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    mapped, before = np.load("x.npy", mmap_mode="r"), counts()
    monkeypatch.setattr(unseen._THREAD, "mapped", 0)
    monkeypatch.setattr(unseen._THREAD, "enough", BIG // 2)
    with tx.no_disk_io():  # less than the code
        mapped.sum()
    if counts().fetched - before.fetched < BIG // 2:  # type: ignore[union-attr]
        pytest.skip("the system kept the pages in memory")
    assert unseen._THREAD.enough > 2**20
    monkeypatch.setattr(unseen._THREAD, "mapped", 2**40)
    monkeypatch.setattr(unseen._THREAD, "enough", 0)
    tx.no_disk_io(lambda: None, allow=here)()
    monkeypatch.setattr(unseen._THREAD, "enough", 0)
    with pytest.raises(tx.DiskIOError, match=r"1.0 TiB were read by this thread, through pages of .*x.npy"):
        tx.no_disk_io(lambda: None)()
    tx.no_disk_io(lambda: None)()


def stderr_in_a_file() -> None:
    log, kept = os.open("log.txt", os.O_CREAT | os.O_WRONLY), os.dup(2)
    os.dup2(log, 2)
    try:
        with tx.no_disk_io():
            os.write(2, bytes(BIG))
            os.fdopen(2, "w", closefd=False).write("its own words")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(log)


def pipe() -> None:
    read, write = os.pipe()
    for _ in range(3):
        os.write(write, bytes(2**14))
        os.read(read, 2**14)
    with os.fdopen(read, "rb") as a, os.fdopen(write, "wb") as b:
        b.write(bytes(2**14))
        b.flush()
        a.read(2**14)


def sockets() -> None:
    a, b = socket.socketpair()
    with a, b:
        for _ in range(10):
            a.send(bytes(2**15))
            b.recv(2**15)


def message() -> None:
    try:
        {}["none"]
    except KeyError:
        assert "test_no_disk_io" in traceback.format_exc()
        logging.getLogger(__name__).exception("to stderr")


def message_of_python() -> None:
    """Written in C, with the line of the source, of an error that has nowhere to go."""

    class Last:
        def __del__(self) -> None:
            raise KeyError

    hook, sys.unraisablehook = sys.unraisablehook, sys.__unraisablehook__
    try:
        Last()
    finally:
        sys.unraisablehook = hook


def missing() -> None:
    with pytest.raises(FileNotFoundError):
        Path("none").read_bytes()


PRINT = f"print('x' * {BIG})"
HARMLESS: dict[str, Callable[[], Any]] = {
    "print": lambda: print("x" * BIG),  # noqa: T201
    "pipe": pipe,
    "sockets": sockets,
    "process": lambda: subprocess.run([sys.executable, "-S", "-c", PRINT], check=True, capture_output=True),
    "null": lambda: Path(os.devnull).write_bytes(bytes(BIG)),
    "kernel": lambda: [Path("/proc/self/maps").read_bytes() for _ in range(9) if Path("/proc").exists()],
    "in memory": lambda: sqlite3.connect(":memory:").close(),
    "stat": lambda: (Path("x.npy").stat(), Path("none").exists()),
    "message": message,
    "message of Python": message_of_python,
    "missing": missing,
}


@pytest.mark.parametrize("act", HARMLESS.values(), ids=HARMLESS)
def test_what_is_no_disk_passes(act: Callable[[], Any]) -> None:
    with tx.no_disk_io():
        act()


def test_the_pipe_of_a_process_that_was_started_before_passes() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", PRINT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tx.no_disk_io():
            assert len(process.stdout.read(BIG)) == BIG


def test_what_is_printed_passes_into_a_file_too(on_disk: None) -> None:
    stderr_in_a_file()
    assert Path("log.txt").stat().st_size >= BIG


def test_imports_pass_and_what_they_load_does_not(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    for name, body in {"lazy_good": "x = 1", "lazy_bad": "import numpy as np\ny = np.load('x.npy')"}.items():
        (here / f"{name}.py").write_text(f"{body}\n")
    with tx.no_disk_io():
        __import__("lazy_good")
    with pytest.raises(tx.DiskIOError, match=r"x.npy.* at .*lazy_bad.py:2"), tx.no_disk_io():
        __import__("lazy_bad")


def test_a_fresh_process_compiles_inside_with_a_cache_on_disk() -> None:
    code = """
        import erythroxy_tx as tx
        with tx.no_disk_io():
            import jax, jax.numpy as jnp, scipy.stats
            jax.config.update("jax_compilation_cache_dir", "cache")
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
            for _ in range(2):
                jax.jit(lambda x: (x @ x).sum())(jnp.ones((64, 64))).block_until_ready()
                jax.clear_caches()
        assert __import__("os").listdir("cache")
    """
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "true", "PYTHONPATH": os.pathsep.join(sys.path)}
    lines = "\n".join(line[8:] for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_other_threads_are_not_watched() -> None:
    found: list[int] = []

    def load() -> None:
        found.append(np.load("x.npy").size)

    with tx.no_disk_io():
        for run in (load, lambda: contextvars.copy_context().run(load)):
            thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
            thread.start()
            thread.join()
    assert found == [BIG, BIG]
    with pytest.raises(tx.DiskIOError), tx.no_disk_io():
        load()


def test_tasks_of_a_loop() -> None:
    async def other(file: Any) -> int:
        return len(file.read()) + len(os.listdir())  # noqa: PTH208

    async def main() -> None:
        with Path("x.npy").open("rb") as file:  # noqa: ASYNC230
            task = asyncio.create_task(other(file))
            with tx.no_disk_io():
                assert await task > BIG
            file.seek(0)
            if counts() is not None:
                with pytest.raises(tx.DiskIOError, match="read by this thread"):
                    tx.no_disk_io(file.read)()

    asyncio.run(main())


ALLOWED: dict[str, Callable[[], Any]] = {
    "path": lambda: "x.npy",
    "Path": lambda: Path("x.npy").absolute(),
    "bytes": lambda: b"x.npy",
    "list": lambda: ["other", Path("x.npy")],
    "folder": lambda: ".",
    "above": lambda: Path.cwd().parent,
    "pattern": lambda: "*.npy",
    "pattern of folders": lambda: str(Path.cwd().parent / "*"),
    "link": lambda: Path("link").symlink_to("x.npy") or "link",
    "dots": lambda: "folder/../x.npy",
}


@pytest.mark.parametrize("make", ALLOWED.values(), ids=ALLOWED)
def test_what_is_allowed_passes(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    allow = make()
    with Path("x.npy").open("rb") as file:
        block = tx.no_disk_io(allow=allow)
        monkeypatch.chdir("folder")
        with block:
            file.read()
            np.load("../x.npy")
    Path("../link.npy").symlink_to("x.npy")
    with tx.no_disk_io(allow=["../x.npy", "../fold?r"]):
        np.load("../link.npy")
        np.save("new.npy", np.zeros(1))
    with pytest.raises(tx.DiskIOError, match="but of") as info, tx.no_disk_io(allow="x.npy"):
        np.load("../x.npz")
    assert info.value.path.endswith("x.npz")


def test_open_files_are_allowed_as_they_are(on_disk: None) -> None:
    with Path("new").open("wb", buffering=0) as file, tx.no_disk_io(allow=[file]):
        file.write(bytes(BIG))
    read, write = os.pipe()
    with os.fdopen(read, "rb") as a, os.fdopen(write, "wb") as b, tx.no_disk_io(allow=a):
        for _ in range(16):
            os.write(b.fileno(), bytes(2**15))
            os.read(a.fileno(), 2**15)


def test_a_folder_that_is_allowed_may_be_filled_and_removed() -> None:
    with tx.no_disk_io(allow="runs"):
        Path("runs/1").mkdir(parents=True)
        np.savez("runs/1/tmp.npz", x=np.zeros(BIG))
        Path("runs/1/tmp.npz").rename("runs/1/x.npz")
        shutil.rmtree("runs")
    with pytest.raises(tx.DiskIOError, match=r"os\.rename"), tx.no_disk_io(allow="runs"):
        Path("x.npz").rename("runs")


@pytest.mark.parametrize("allow", [1, None, "", ["a", 2], {"a": 1}])
def test_allow_is_checked(allow: Any) -> None:
    with pytest.raises(TypeError, match=r"tx.no_disk_io got allow=.*Expected a path"):
        tx.no_disk_io(allow=allow)


def test_a_refusal_that_was_caught_is_raised_at_the_end() -> None:
    def step():
        with contextlib.suppress(RuntimeError):
            np.load("x.npy")

    with pytest.raises(tx.DiskIOError, match=r"x\.npy"):
        tx.no_disk_io(step)()
    tx.no_disk_io(step, allow="x.npy")()


def test_errors_of_the_program_come_first_and_get_a_note() -> None:
    def fails(file: Any) -> None:
        with contextlib.suppress(RuntimeError):
            file.read_bytes() if isinstance(file, Path) else file.read(BIG)
        raise KeyError("mine")

    with pytest.raises(KeyError) as info:
        tx.no_disk_io(fails)(Path("x.npy"))
    assert "x.npy" in info.value.__notes__[0]
    with Path("x.npy").open("rb") as file, pytest.raises(KeyError) as info:
        tx.no_disk_io(fails)(file)
    assert counts() is None or "read by this thread" in info.value.__notes__[0]
    with Path(os.devnull).open("rb") as file, pytest.raises(KeyError) as info:
        tx.no_disk_io(fails)(file)
    assert not hasattr(info.value, "__notes__")


def test_each_block_has_what_it_allows() -> None:
    for outer, inner in (("x.npy", "none"), ("none", "x.npy")):
        with pytest.raises(tx.DiskIOError), tx.no_disk_io(allow=outer), tx.no_disk_io(allow=inner):
            np.load("x.npy")
    with tx.no_disk_io(allow="x.npy"), tx.no_disk_io(allow="x.npy"):
        np.load("x.npy")


def test_calls_in_a_block_do_not_add_up() -> None:
    step = tx.no_disk_io(lambda x: x)
    with tx.no_disk_io():
        assert sum(map(step, range(2000))) == 1999000


def test_it_sleeps_outside_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    with tx.no_disk_io():
        pass
    monkeypatch.setattr(disk, "_judge", lambda *_: pytest.fail("the hook is awake"))
    np.load("x.npy")
    assert disk._COUNT == [0]


@LINUX
def test_descriptors_that_were_closed_by_others_are_opened_again() -> None:
    with tx.no_disk_io():
        pass
    counter = sys.modules["erythroxy_tx.guards.io_counts"]._THREAD.counter
    os.close(counter.descriptor)
    with Path("x.npy").open("rb") as file:  # gets the number that is free
        with pytest.raises(tx.DiskIOError, match="read by this thread"), tx.no_disk_io():
            file.read()
        assert file.seek(0) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_a_process_that_is_forked_inside_is_not_watched() -> None:
    with tx.no_disk_io():
        child = os.fork()
        if not child:
            try:
                os._exit(int(np.load("x.npy").size != BIG))
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


@tx.no_disk_io(allow="logs")
def pickled(x):
    """A docstring."""
    return x + 1


def test_it_looks_like_the_function() -> None:
    assert (pickled.__name__, pickled.__doc__) == ("pickled", "A docstring.")
    assert pickle.loads(pickle.dumps(pickled)) == pickled
    assert pickled(1) == 2
    assert jax.grad(pickled)(2.0) == 1


def test_it_is_refused_inside_of_a_trace_and_for_what_runs_late() -> None:
    with pytest.raises(tx.TransformOrderError, match=r"tx.no_disk_io\(jax.jit\(f\)\)"):
        jax.jit(pickled)(1.0)
    with pytest.raises(TypeError, match=r"with tx\.no_disk_io"):
        tx.no_disk_io(lambda: (yield))


@pytest.mark.parametrize("name", ["tokenizer", "linecache2", "gettext_tools"])
def test_a_module_with_such_a_name_is_watched(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / f"{name}.py").write_text("def read(path): return open(path, 'rb').read()\n")
    monkeypatch.syspath_prepend(str(here))
    module = importlib.import_module(name)
    with pytest.raises(tx.DiskIOError), tx.no_disk_io():
        module.read("x.npy")


def test_a_time_zone_passes() -> None:
    with tx.no_disk_io():
        try:
            zoneinfo.ZoneInfo.no_cache("Europe/Rome")
        except zoneinfo.ZoneInfoNotFoundError:
            pytest.skip("the system has no time zones")
