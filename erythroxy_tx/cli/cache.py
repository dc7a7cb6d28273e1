"""`erythroxy cache`: what the compilation cache holds, and how it is cleared."""

import argparse
import os
import sys
from pathlib import Path

from erythroxy_tx.cli.show import show
from erythroxy_tx.host.compile_cache import USUAL
from erythroxy_tx.host.compile_cache import clear
from erythroxy_tx.host.compile_cache import compile_cache
from erythroxy_tx.host.compile_cache import jaxlib_installed
from erythroxy_tx.units import format_bytes


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("what", nargs="?", choices=["tell", "clear"], default="tell", help="tell (default) or clear")
    parser.add_argument("--folder", help="instead of $JAX_COMPILATION_CACHE_DIR")
    parser.add_argument("--yes", action="store_true", help="clear without a question")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.epilog = (
        "clear deletes the files of a cache alone, and refuses a folder that holds anything else.\n\n"
        "Exit status: 0, also where there is nothing to delete or the answer is no; 2 it could not run: no folder is\n"
        "named, the one to clear does not exist or holds anything else, or there is nobody to ask.\n\n"
        "Examples:\n  erythroxy cache\n  erythroxy cache --folder ~/.cache/jax\n"
        "  erythroxy cache clear --folder .jax_cache --yes"
    )


def run(arguments: argparse.Namespace) -> int:
    """Tell or clear. Returns the exit status."""
    folder = arguments.folder
    if folder == "":  # such as "$A_NAME_THAT_IS_NOT_SET"
        raise ValueError("--folder got no folder. Fix: erythroxy cache --folder FOLDER.")
    folder = folder or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if arguments.what == "clear":
        return _clear(folder, is_sure=arguments.yes, json=arguments.json)
    found = compile_cache(folder, installed=jaxlib_installed())
    show(found, json=arguments.json)
    for usual in USUAL if not arguments.json and arguments.folder is None else ():
        path = Path(os.path.expanduser(usual))  # noqa: PTH111  # without a home it stays as it is
        if path.is_dir() and path != found.folder:
            print(f"also there: {usual}   (erythroxy cache --folder {usual})")
    return 0


def _clear(folder: str | None, *, is_sure: bool, json: bool) -> int:
    if not folder:
        raise ValueError(
            "clear got no folder: JAX_COMPILATION_CACHE_DIR is not set. Fix: erythroxy cache clear --folder FOLDER."
        )
    found = compile_cache(folder)
    if not is_sure and found.bytes and not found.others:
        if json or sys.stdin is None or not sys.stdin.isatty():
            raise ValueError(f"clear asks before it deletes from {folder}, and there is nobody to ask. Fix: add --yes.")
        answer = input(f"Delete {found.entries} programs, {format_bytes(found.bytes)}, from {found.folder}? [y/N] ")
        if answer.strip().lower() not in {"y", "yes"}:
            return 0
    deleted = clear(folder)
    if json:
        show(deleted, json=True)
        return 0
    if not deleted.bytes:
        print(f"nothing to delete in {deleted.folder}")
        return 0
    print(f"deleted {deleted.entries} programs, {format_bytes(deleted.bytes)}, from {deleted.folder}")
    return 0
