"""`doctor`: what is wrong with the settings of JAX, XLA and the machine, and how to mend it. Not here: the single
checks (`checkup/`, a kind each).
"""

import dataclasses
import platform
import sys
from collections.abc import Iterator

from erythroxy_tx.host.checkup import cache
from erythroxy_tx.host.checkup import flags
from erythroxy_tx.host.checkup import gpu_memory
from erythroxy_tx.host.checkup import installation
from erythroxy_tx.host.checkup import names
from erythroxy_tx.host.checkup import resources
from erythroxy_tx.host.checkup import visible
from erythroxy_tx.host.checkup.asked import Jax
from erythroxy_tx.host.checkup.counts import CacheCounts
from erythroxy_tx.host.checkup.facts import Facts
from erythroxy_tx.host.checkup.facts import gather
from erythroxy_tx.host.checkup.finding import Finding
from erythroxy_tx.host.checkup.settings import Setting
from erythroxy_tx.host.checkup.settings import settings
from erythroxy_tx.host.compile_cache import CompileCache
from erythroxy_tx.host.report import Line
from erythroxy_tx.host.report import Report

_CHECKS = (installation, flags, names, visible, gpu_memory, resources, cache)
_ORDER = ("error", "warning", "note")
_STYLES = {"error": "bad", "warning": "warn", "note": "dim"}


@dataclasses.dataclass(frozen=True)
class Checkup(Report):
    """What `doctor` found.

    **Attributes:**

    - `python`: version and system.
    - `jax`: versions, plugins, backend and devices, or how far JAX got.
    - `settings`: each with `name`, `value`, `effective`, the value that counts, and `origin`.
    - `cache`: the folder of compiled programs.
    - `counts`: how the cache fared in this process: `requests`, `hits`, `misses`, `stored`; None where that was not
        counted.
    - `findings`: the worst first, each with `code`, `severity`, `where`, `what`, `why` and `fix`.
    """

    python: str
    jax: Jax
    settings: tuple[Setting, ...]
    cache: CompileCache
    counts: CacheCounts | None
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        """Whether there is neither an error nor a warning; notes do not count."""
        return all(each.severity == "note" for each in self.findings)

    def lines(self) -> Iterator[Line]:
        yield Line(self.python, "title")
        yield from self._jax()
        yield from self._settings()
        yield from self.cache.lines()
        yield from self._counts()
        for each in self.findings:
            yield Line("")
            yield Line(f"{each.code} {each.severity}: {each.where}: {each.what}", _STYLES[each.severity])
            yield Line(f"  {each.why}")
            yield Line(f"  fix: {each.fix}")
        yield Line("")
        counts = [(sum(each.severity == kind for each in self.findings), kind) for kind in _ORDER]
        told = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for count, kind in counts if count)
        yield Line(told or "nothing found", "good" if self.is_clean else "title")

    def _jax(self) -> Iterator[Line]:
        jax = self.jax
        yield Line(f"jax {jax.version or 'unknown'}, jaxlib {jax.jaxlib or 'unknown'}")
        for name, version in jax.plugins.items():
            yield Line(f"  plugin {name} {version}")
        if jax.backend is not None:
            where = f"in {jax.asked}"
            if jax.bad_flags:
                yield Line("  with XLA_FLAGS as it is, the start of the backend ends the process", "bad")
                where += ", without the flags that end it"
            count = f"{len(jax.devices)} device{'s' if len(jax.devices) != 1 else ''}"
            yield Line(f"  backend {jax.backend}, {count}: {', '.join(jax.devices[:8])} ({where})")

    def _settings(self) -> Iterator[Line]:
        yield Line("settings" if self.settings else "settings: none", "title")
        for each in self.settings:
            value = each.effective if each.value is None else each.value
            counts = each.value is not None and each.effective not in {None, each.value}
            counted = f", {each.effective} counts" if counts else ""
            yield Line(f"  {each.name}={value}  ({each.origin}{counted})", "dim" if each.origin == "default" else "")

    def _counts(self) -> Iterator[Line]:
        counts = self.counts
        if counts is None or self.cache.folder is None:
            return
        if not counts.is_complete:
            why = "what compiled before erythroxy_tx was used is not counted: import it after jax, or use it earlier"
            yield Line(f"  {why}", "warn")
        yield Line(
            f"  in this process: {counts.requests} requests, {counts.hits} hits, {counts.misses} misses, "
            f"{counts.stored} stored, {counts.too_fast} below the minimum time, "
            f"{counts.before_folder} before it had a folder"
        )


def doctor() -> Checkup:
    """Check the settings of JAX, XLA and the machine, with a reason and a fix for each finding.

    JAX is asked in another process, for at most a minute, so that one that is broken, hangs in a driver or ends its
    process is a finding. That process reserves no memory on a GPU. Where JAX runs in this process, its devices, its
    `jax.config` and its compilation cache are looked at here; a setting that was made after JAX had read it is found
    if `erythroxy_tx` was imported before it was made.

    **Returns:** a `Checkup`; printed, it is a page. `.findings` holds what is wrong, each with a `code` that the page
    on `doctor` explains, `.settings` the value of each setting that counts, `.counts` hits and misses of the
    compilation cache since `erythroxy_tx` was first used.

    >>> found = doctor()
    >>> [finding.code for finding in found.findings if finding.severity == "error"]
    []
    """
    return examine(gather())


def examine(facts: Facts) -> Checkup:
    """Run every check on what was gathered."""
    found = [each for check in _CHECKS for each in check.check(facts)]
    found.sort(key=lambda each: (_ORDER.index(each.severity), each.code))
    return Checkup(
        python=f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}",
        jax=facts.jax,
        settings=settings(facts),
        cache=facts.cache,
        counts=facts.counts,
        findings=tuple(found),
    )
