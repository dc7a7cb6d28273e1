"""Checks of how a run takes the memory of GPUs: the fraction, preallocation, the allocator.

What is valid is read from `jaxlib.xla_client.generate_pjrt_gpu_plugin_options`, in jaxlib 0.10.2 and 0.12.0.
"""

import math
from collections.abc import Iterator
from shlex import quote

from erythroxy_tx.host.checkup.facts import Facts
from erythroxy_tx.host.checkup.finding import Finding
from erythroxy_tx.host.checkup.finding import finding
from erythroxy_tx.host.checkup.settings import ALLOCATOR
from erythroxy_tx.host.checkup.settings import FRACTION
from erythroxy_tx.host.checkup.settings import OLD_FRACTION
from erythroxy_tx.host.checkup.settings import PREALLOCATE
from erythroxy_tx.host.checkup.settings import uses_gpu
from erythroxy_tx.host.checkup.settings import where
from erythroxy_tx.host.checkup.visible import is_hidden
from erythroxy_tx.host.checkup.visible import visible

_ALLOCATORS = ("default", "platform", "bfc", "cuda_async", "vmm", "address")
_OFF, _ON = ("false", "False", "0"), ("", "true", "True", "1")
_UNIFIED = "TF_FORCE_UNIFIED_MEMORY"
_DEFAULT = 0.75
_LEAST, _MOST = 0.5, 0.7  # beside others


def check(facts: Facts) -> Iterator[Finding]:
    """Look at each setting alone, then at those that contradict each other."""
    if not uses_gpu(facts) or is_hidden(facts):
        return
    found = [*_fraction(facts), *_preallocate(facts), *_allocator(facts)]
    yield from found
    if facts.jax.options_error and not any(each.severity == "error" for each in found):
        what = facts.jax.options_error
        yield finding(
            "E309",
            "XLA_PYTHON_CLIENT_*",
            what,
            why="the backend does not start",
            fix="take away the setting that it names",
        )


def _fraction(facts: Facts) -> Iterator[Finding]:
    old, new = (facts.in_force.get(name, "") for name in (OLD_FRACTION, FRACTION))
    name, text = (FRACTION, new) if new else (OLD_FRACTION, old)
    place, is_unified = where(facts, name), facts.in_force.get(_UNIFIED, "").lower() in {"1", "true"}
    fix = "; ".join(_fixes(facts, text, is_unified=is_unified))  # one for every finding, so that none undoes another
    why = "the GPU backend raises a ValueError"
    if old and new:
        what = f"{FRACTION}={new} and {OLD_FRACTION}={old}"
        yield finding("E301", where(facts, OLD_FRACTION), what, why=why, fix=fix)
    elif old:
        renamed = f"its name is {FRACTION} now; the old one will cease to work, and then 0.75 is taken"
        yield finding("E302", place, "deprecated", why=renamed, fix=fix)
    if is_unified:
        unified = "what does not fit goes to the host's memory over the bus, where systemd-oomd finds it"
        yield finding("E314", where(facts, _UNIFIED), "unified memory is on", why=unified, fix=fix)
    value = _number(text or str(_DEFAULT))
    if value is None:
        yield finding("E303", place, f"{text!r} is no number", why=why, fix=fix)
    elif not (0 < value <= 1) and not (is_unified and 1 < value < math.inf):
        why = "it is a share of the GPU's memory, not a percentage, and not bytes"
        yield finding("E304", place, f"{text} is not between 0 and 1", why=why, fix=fix)
    elif not is_unified and _is_shared(facts) and not _LEAST <= value <= _MOST:
        why = "others use the GPU: 0.5 to 0.7 leaves them room, and is enough to be worth it"
        what = f"{value:g} of a GPU that others use" + ("" if text else ", the default")
        yield finding("E313", place if text else f"{FRACTION} (not set)", what, why=why, fix=fix)


def _fixes(facts: Facts, text: str, *, is_unified: bool) -> Iterator[str]:
    """The lines that leave one fraction, and one that is right."""
    value = _number(text) if text else _DEFAULT
    meant = text if value is not None and 0 < value <= 1 else _meant(text)
    if _is_shared(facts) and not _LEAST <= float(meant or _DEFAULT) <= _MOST:
        meant = "0.6"
    if meant and (meant != text or not facts.in_force.get(FRACTION)):
        yield f"export {FRACTION}={quote(meant)}"
    if facts.in_force.get(OLD_FRACTION):
        yield f"unset {OLD_FRACTION}"
    if is_unified:
        yield f"unset {_UNIFIED}"


def _is_shared(facts: Facts) -> bool:
    return any(gpu.tenants for gpu in visible(facts) or ())


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _meant(text: str) -> str:
    """What a fraction that is no fraction probably means."""
    value = _number(text.strip().rstrip("%").replace(",", "."))
    if value is None:
        return "0.6"
    return f"{value / 100:g}" if 10 <= value <= 100 else f"{value:g}" if 0 < value <= 1 else "0.6"


def _preallocate(facts: Facts) -> Iterator[Finding]:
    text = facts.in_force.get(PREALLOCATE, "")
    place = where(facts, PREALLOCATE)
    if text not in _OFF:
        if text not in _ON:
            why = "only false, False and 0 turn it off; anything else leaves it on"
            yield finding("E305", place, f"{text!r} leaves preallocation on", why=why, fix=f"unset {PREALLOCATE}")
        return
    why = "memory is then taken piece by piece and fragments, so that a run can fail for want of memory late"
    yield finding("E306", place, "preallocation is off", why=why, fix=f"unset {PREALLOCATE}")
    if set_fraction := facts.in_force.get(FRACTION) or facts.in_force.get(OLD_FRACTION):
        why = "it only caps what the run takes; others can take the memory first"
        yield finding(
            "E307", place, f"the fraction {set_fraction} reserves nothing", why=why, fix=f"unset {PREALLOCATE}"
        )


def _allocator(facts: Facts) -> Iterator[Finding]:
    text = facts.in_force.get(ALLOCATOR, "default")
    place, fix = where(facts, ALLOCATOR), f"unset {ALLOCATOR}"
    if text.lower() not in _ALLOCATORS:
        what = f"{text!r} is none of {', '.join(_ALLOCATORS)}"
        yield finding("E308", place, what, why="the GPU backend raises a ValueError", fix=fix)
    elif text.lower() == "platform":
        why = "each operation asks the driver for memory and gives it back, and waits for it"
        yield finding("E310", place, "the platform's allocator", why=why, fix=fix)
        if facts.in_force.get(FRACTION) or facts.in_force.get(OLD_FRACTION):
            why = "the platform's allocator reserves nothing and has no limit"
            yield finding("E311", place, "the fraction has no effect", why=why, fix=fix)
    elif text.lower() == "cuda_async":
        why = "it has ended runs with ILLEGAL_ADDRESS, and its pool fragments in another way; the default is steadier"
        yield finding("E312", place, "the allocator is cudaMallocAsync", why=why, fix=fix)
