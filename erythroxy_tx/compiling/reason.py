"""Why something would be traced or compiled again, in one message. Not here: how two calls are compared."""

import dataclasses
from typing import Any

from erythroxy_tx._compat import JitCall
from erythroxy_tx.compiling.changes import Change
from erythroxy_tx.compiling.changes import closest
from erythroxy_tx.compiling.changes import numbers
from erythroxy_tx.compiling.changes import padding
from erythroxy_tx.compiling.scope import Scope
from erythroxy_tx.compiling.seen import Seen
from erythroxy_tx.compiling.seen import line_of
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.errors import RetraceError

_MOST = 12  # changes in a message
_OF_LEAVES = {"shape", "dtype", "weak type", "place", "static", "structure", "aux data", "keyword"}


def retrace_error(
    scopes: list[Scope], armed: Scope, stage: str, name: str, call: JitCall | None, now: Seen | None, *,
    inner: list[Seen], outer: tuple[Seen | None, list[Seen]], line: str,
) -> RetraceError:  # fmt: skip
    """The error for one event.

    **Arguments:** `inner`: earlier calls of the function that compiles. `outer`: the guarded call, and its earlier
    ones.
    """
    found = closest(inner, now) if now is not None else None
    around = closest(outer[1], outer[0]) if outer[0] is not None else None
    own = [change for change in (around[1] if around else []) if change.kind not in ("setting", "function")]
    of = "" if outer[0] is not None and now is not None and outer[0].code is now.code else _name(call)
    if found and found[1] and _is_plain(armed.fn):  # what it is called with is no part of a program
        own = [change for change in own if change.kind in ("shape", "dtype", "weak type", "place")]
    same = {(change.kind, change.before, change.after) for change in own}
    told = own + [
        dataclasses.replace(change, of=of if change.kind in _OF_LEAVES and armed.fn is not None else "")
        for change in (found[1] if found else [])
        if (change.kind, change.before, change.after) not in same
    ]
    if call is not None and call.api:
        told = [change for change in told if change.kind != "function"]
    if not told and around and outer[0] is not None:
        told = numbers(around[0], outer[0])
    pad = padding(own, outer[0]) if outer[0] is not None and own and not _is_padded(armed.fn) else ""
    lines = [f"{_head(armed)}: {_what(name, call)} would be {_stage(stage, call)}, {line}"]
    lines += [f"inside of {_head(scope)}" for scope in scopes if scope is not armed and scope.armed]
    lines += [f"  {change}" for change in told[:_MOST]]
    lines += [f"  … and {len(told) - _MOST} more"] * (len(told) > _MOST)
    lines += [] if told else [f"  {_unknown(call, now, known=found is not None)}"]
    lines.append(f"Expected {armed.watcher.expected}. Stopped before it ran; what is compiled stays.")
    lines += _fixes(told, call, pad)
    error = RetraceError("\n".join(lines))
    error.changes, error.stage, error.function = tuple(told), stage, name
    return error


def _head(scope: Scope) -> str:
    return scope.watcher.label(scope.call)


def _what(name: str, call: JitCall | None) -> str:
    if call is None or call.function is None:
        return f"the derivative or batch of {name}"
    if call.api:
        return f"{call.api}, called outside of jit,"
    where = line_of(call.function)
    return f"{_name(call)} ({where})" if where else _name(call)


def _name(call: JitCall | None) -> str:
    if call is None or call.function is None:
        return ""
    return call.api or name_of(call.function).rpartition(".")[2]


def _is_plain(fn: Any) -> bool:
    """Whether a guarded function is neither jitted nor one of a transform that compiles."""
    while isinstance(fn, Transform) and not fn.compiles:
        fn = fn.fn
    return not isinstance(fn, Transform) and fn is not None and not hasattr(fn, "lower")


def _is_padded(fn: Any) -> bool:
    while isinstance(fn, Transform):
        if fn.name == "tx.pad_static":
            return True
        fn = fn.fn
    return False


def _stage(stage: str, call: JitCall | None) -> str:
    if call is not None and call.only_traced:
        return "traced (by lower, or eval_shape)"
    return "traced and compiled" if stage == "trace" else "compiled (it is traced already)"


def _unknown(call: JitCall | None, now: Seen | None, *, known: bool) -> str:
    if call is None or now is None:
        return "What it was before is not known: it is made by jax.grad or jax.vmap, of which no arguments are seen."
    if not known:
        return f"It was not compiled before, as far as was seen; now with {_called(now)}."
    if call.api:
        return "The arguments are those of an earlier call: what it is given to run is a new function at each call."
    return (
        "Nothing that can be seen differs from an earlier call: neither the arguments nor the settings. It was dropped "
        "(clear_cache), is an object that was made anew, or depends on something that it captures."
    )


def _called(seen: Seen) -> str:
    given = [f"{path}: {leaf.told}" for path, leaf in seen.leaves.items()]
    return ", ".join(given[:_MOST]) + " …" * (len(given) > _MOST) if given else "no arguments"


def _fixes(told: list[Change], call: JitCall | None, pad: str) -> list[str]:
    by_fix: dict[str, list[str]] = {}
    for change in told:
        fix = f"{pad}, if the length varies, or drop the last part" if pad and change.kind == "shape" else change.fix
        by_fix.setdefault(fix, []).append(change.place)
    fixes = [f"{', '.join(paths[:4])}{' …' * (len(paths) > 4)}: {fix}" for fix, paths in by_fix.items()]
    if call is not None and call.api:
        fixes.insert(0, f"put it into a function under jax.jit, where {call.api} is a part of one program")
    if not fixes:
        fixes = ["run it once in the warm-up: a larger warmup=, or once before the block"]
    return [f"Fix: {fixes[0]}", *(f"     {fix}" for fix in fixes[1:])]
