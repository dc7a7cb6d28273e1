"""Checks of the compilation cache: its folder, and how it fared in this process."""

from collections.abc import Iterator
from shlex import quote

from erythroxy_tx.host.checkup.facts import Facts
from erythroxy_tx.host.checkup.finding import Finding
from erythroxy_tx.host.checkup.finding import finding
from erythroxy_tx.host.checkup.settings import origin

_MINIMUM = "jax_persistent_cache_min_compile_time_secs"


def check(facts: Facts) -> Iterator[Finding]:
    """Look at the folder, then at the counts."""
    cache = facts.cache
    if cache.folder is None:
        return
    where = f"{cache.folder} ({origin(facts, 'JAX_COMPILATION_CACHE_DIR')})"
    if facts.config("jax_enable_compilation_cache") is False:
        why = "jax_enable_compilation_cache is false: nothing is read or written"
        yield finding("E503", where, "off", why=why, fix="unset JAX_ENABLE_COMPILATION_CACHE")
        return
    fix = "export JAX_COMPILATION_CACHE_DIR=~/.cache/jax"
    if not cache.is_folder:
        yield finding("E501", where, "a file", why="nothing is stored; JAX only warns", fix=fix)
    elif not cache.is_writable:
        yield finding("E502", where, "not writable", why="nothing is stored; JAX only warns", fix=fix)
    if any(place.role == "compilation cache" and place.is_temporary for place in facts.machine.places):
        why = "after a restart everything is compiled again"
        yield finding("E507", where, "under the temporary folder", why=why, fix=fix)
    if cache.older:
        what = f"{cache.older} of {cache.entries} programs were made before the installed jaxlib"
        why = "versions are in the key: they are found only if the same version was installed before (judged by age)"
        yield finding("E506", where, what, why=why, fix=f"erythroxy cache clear --folder {quote(str(cache.folder))}")
    yield from _counts(facts, where)


def _counts(facts: Facts, where: str) -> Iterator[Finding]:
    counts = facts.counts
    if counts is None:
        return
    minimum = facts.config(_MINIMUM)
    if counts.too_fast and not counts.stored and not counts.hits:
        what = f"{counts.too_fast} requests below the {minimum:g} s minimum compile time, so 0 stored"
        why = f"{_MINIMUM} is {minimum:g}; the slowest took {counts.slowest:.2f} s"
        yield finding("E504", where, what, why=why, fix=f'jax.config.update("{_MINIMUM}", 0)')
    if counts.before_folder:
        what = f"{counts.before_folder} programs were compiled before the cache had a folder"
        fix = "set JAX_COMPILATION_CACHE_DIR in the shell, or jax_compilation_cache_dir right after import jax"
        yield finding("E505", where, what, why="they are compiled at each start", fix=fix)
    if counts.not_stored > 0:
        what = f"{counts.not_stored} programs took longer than the minimum, and were not stored"
        why = "too small, with a callback to the host, not of process 0, or a failure that JAX warned of"
        yield finding("E508", where, what, why=why, fix="JAX_EXPLAIN_CACHE_MISSES=1   # run again: JAX logs the reason")
