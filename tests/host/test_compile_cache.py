"""The folder of compiled programs: what is counted, what is old, and that only its own files are deleted."""

import os
import sys
from pathlib import Path

import pytest

from erythroxy_tx.host.compile_cache import clear
from erythroxy_tx.host.compile_cache import compile_cache
from erythroxy_tx.host.compile_cache import jaxlib_installed

ENTRY = f"jit__lambda-{'0a' * 32}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What jax 0.12 leaves: two programs, when one was last used, a lock, and a result of XLA."""
    (tmp_path / f"{ENTRY}-cache").write_bytes(b"x" * 100)
    (tmp_path / f"jit_f-{'1b' * 32}-cache").write_bytes(b"x" * 50)
    (tmp_path / f"{ENTRY}-atime").write_bytes(b"x" * 8)
    (tmp_path / ".lockfile").touch()
    (tmp_path / "xla_gpu_per_fusion_autotune_cache_dir" / "tmp").mkdir(parents=True)
    (tmp_path / "xla_gpu_per_fusion_autotune_cache_dir" / "Ab_c=.textproto").write_bytes(b"x" * 2)
    return tmp_path


def test_what_is_counted(folder: Path) -> None:
    found = compile_cache(folder)
    assert (found.entries, found.bytes, found.others, found.is_writable) == (2, 160, (), True)
    assert str(found) == f"compilation cache: {folder}\n  2 programs, 160 B"


def test_programs_older_than_jaxlib(folder: Path) -> None:
    os.utime(folder / f"{ENTRY}-cache", (1000, 1000))
    assert compile_cache(folder, installed=2000).older == 1
    assert "1 older than the installed jaxlib" in str(compile_cache(folder, installed=2000))
    assert compile_cache(folder).older == 0


def test_when_jaxlib_was_installed() -> None:
    installed = jaxlib_installed()
    assert installed is None or installed > 1_500_000_000


def test_off_and_not_there(tmp_path: Path) -> None:
    assert str(compile_cache(None)) == str(compile_cache("")) == "compilation cache: off"
    found = compile_cache(tmp_path / "a" / "b")
    assert (found.exists, found.is_folder, found.is_writable) == (False, True, True)
    assert "not there yet" in str(found)


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    found = compile_cache(tmp_path / "cache")
    assert (found.exists, found.is_folder) == (True, False)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(folder: Path) -> None:
    folder.chmod(0o500)
    assert not compile_cache(folder).is_writable
    folder.chmod(0o700)


def test_a_folder_that_cannot_be_looked_into(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert not compile_cache(folder).is_writable
    with pytest.raises(PermissionError):
        clear(folder)


def test_a_folder_of_a_cloud_is_not_looked_at() -> None:
    found = compile_cache("gs://bucket/cache")
    assert (found.exists, found.is_writable, found.entries) == (True, True, 0)
    assert str(found) == "compilation cache: gs://bucket/cache\n  of a cloud, and not looked at"
    with pytest.raises(FileNotFoundError):
        clear("gs://bucket/cache")


def test_a_tilde_is_a_name_as_for_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cache").mkdir()
    assert not compile_cache("~/cache").exists


def test_programs_that_a_run_deletes_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = folder / f"{ENTRY}-cache"
    stat = Path.stat
    monkeypatch.setattr(Path, "is_file", lambda path: path == gone or os.path.isfile(path))  # noqa: PTH113
    monkeypatch.setattr(Path, "stat", lambda path, **how: stat(folder / "gone" if path == gone else path, **how))
    assert (compile_cache(folder).entries, compile_cache(folder).others) == (1, ())


def test_clear(folder: Path) -> None:
    assert clear(folder).entries == 2
    left = {path.name for path in folder.rglob("*")}
    assert left == {"xla_gpu_per_fusion_autotune_cache_dir", "tmp", ".lockfile"}
    assert clear(folder).entries == 0


@pytest.mark.parametrize(
    "other",
    [
        "notes.txt",
        "jit_f-00-cache",
        f"sha256-{'3d' * 32}",
        "tmp",
        "xla_gpu_per_fusion_autotune_cache_dir/tmp/weights.npz",
        f"{ENTRY}-cache.bak",
        "weights.npz",
        "xla_gpu_per_fusion_autotune_cache_dir/weights.npz",
    ],
)
def test_a_folder_with_anything_else_is_left_alone(other: str, folder: Path) -> None:
    (folder / other).touch()
    assert compile_cache(folder).others == (other,)
    with pytest.raises(ValueError, match=r"holds what is not the cache's own: .* Nothing was deleted"):
        clear(folder)
    assert compile_cache(folder).entries == 2


def test_links_and_folders_are_not_the_caches(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("elsewhere") / "weights"
    target.touch()
    (folder / f"jit_g-{'2c' * 32}-cache").symlink_to(target)
    (folder / f"jit_h-{'2c' * 32}-cache").mkdir()
    assert len(compile_cache(folder).others) == 2
    with pytest.raises(ValueError, match="Nothing was deleted"):
        clear(folder)
    assert target.exists()


def test_what_is_no_folder_is_not_cleared(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"does not exist\. Expected the folder of a compilation cache"):
        clear(tmp_path / "cache")
    (tmp_path / "cache").touch()
    with pytest.raises(FileNotFoundError, match=r"is no folder of this machine\. Expected"):
        clear(tmp_path / "cache")
