"""Checks of the names of settings, and of the values of `JAX_*`."""

import re
from collections.abc import Iterator
from shlex import quote

from erythroxy_tx.host.checkup.facts import Facts
from erythroxy_tx.host.checkup.finding import Finding
from erythroxy_tx.host.checkup.finding import finding
from erythroxy_tx.host.checkup.settings import literal
from erythroxy_tx.host.checkup.settings import says
from erythroxy_tx.host.checkup.settings import where
from erythroxy_tx.host.checkup.words import holding
from erythroxy_tx.host.checkup.words import nearest

_OLD_PLATFORM, _PLATFORMS = "JAX_PLATFORM_NAME", "JAX_PLATFORMS"
_OF_TENSORFLOW = {
    "TF_GPU_ALLOCATOR": "unset TF_GPU_ALLOCATOR   # in JAX the allocator is XLA_PYTHON_CLIENT_ALLOCATOR",
    "TF_FORCE_GPU_ALLOW_GROWTH": "unset TF_FORCE_GPU_ALLOW_GROWTH   # in JAX the reserve is XLA_CLIENT_MEM_FRACTION",
}


def check(facts: Facts) -> Iterator[Finding]:
    """Look at each name, and at whether it does what it says."""
    for name, value in sorted(facts.environ.items()):
        if name in _OF_TENSORFLOW:
            why = "TensorFlow reads it; JAX has settings of its own, though its messages name this one"
            yield finding("E207", where(facts, name), f"{name} does nothing in JAX", why=why, fix=_OF_TENSORFLOW[name])
        if name == _OLD_PLATFORM:
            platforms = value if value in {"", "cpu"} else f"{value},cpu"  # it chose the first, and hid none
            fix = f"export {_PLATFORMS}={quote(platforms)}; unset {name}"
            if facts.environ.get(_PLATFORMS):
                fix = f"unset {name}   # and name {value} first in {_PLATFORMS}"
            what, why = f"deprecated for {_PLATFORMS}", "it will cease to work"
            yield finding("E206", where(facts, name), what, why=why, fix=fix)
        elif facts.jax.outcome == "no import" and is_named(name, facts.jax.error):
            yield finding(
                "E205", where(facts, name), f"{facts.jax.error}", why="import jax raises it", fix=f"unset {name}"
            )
        elif name.startswith(("JAX_", "XLA_")) and facts.jax.config:
            yield from _known(facts, name, value)


def is_named(name: str, error: str) -> bool:
    """Whether the error of JAX is about a setting `JAX_...`."""
    return name.startswith("JAX_") and re.search(rf"\b{re.escape(name)}\b", error, re.IGNORECASE) is not None


def _known(facts: Facts, name: str, value: str) -> Iterator[Finding]:
    if name.lower() in facts.jax.config:
        yield from _has_effect(facts, name, value)
    elif facts.names is not None and name not in facts.names:
        known = {key.upper() for key in facts.jax.config} | facts.names
        near = nearest(name, known) or holding(name, known)
        if near is not None:
            fix = f"unset {name}   # {near} is set" if near in facts.environ else ""
            fix = fix or f"export {near}={quote(value)}; unset {name}"
            yield finding(
                "E201", where(facts, name), f"perhaps {near} is meant", why="nothing in JAX reads this name", fix=fix
            )
        else:
            what = "nothing in the installed JAX reads it"
            yield finding(
                "E202",
                where(facts, name),
                what,
                why="it may be of another version, or of another program",
                fix=f"unset {name}",
            )


def _has_effect(facts: Facts, name: str, value: str) -> Iterator[Finding]:
    """Whether a process that is started with the setting has it, and whether this one has."""
    key = name.lower()
    if not value:
        return
    if not says(facts.jax.config[key], value):
        yield finding(
            "E203",
            where(facts, name),
            f"jax.config.{key} is {facts.jax.config[key]!r} all the same",
            why="JAX does not read this one from the environment",
            fix=f'jax.config.update("{key}", {literal(facts.jax.config[key], value)})   # before the first operation',
        )
        return
    here = facts.jax.config_here
    late = next((late for late in facts.late if late.name == name), None)
    was_there = facts.at_start is not None and facts.at_start.get(name) == value
    if here is None or says(here[key], value) or (late is None and was_there):
        return  # in force, or jax.config was updated since
    made = f"set at {late.line}" if late is not None else "set in this process"
    yield finding(
        "E204",
        where(facts, name),
        f"{made} to {value!r}, after import jax: {here[key]!r} counts",
        why="JAX reads JAX_* from the environment once, when it is imported",
        fix=f'jax.config.update("{key}", {literal(here[key], value)})   # or set {name} above import jax',
    )
