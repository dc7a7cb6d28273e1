"""Why something would be traced or compiled again, in one message. Not here: how two calls are compared."""

from erythroxy_tx._compat import JitCall
from erythroxy_tx.compiling.changes import Change
from erythroxy_tx.compiling.changes import closest
from erythroxy_tx.compiling.scope import Scope
from erythroxy_tx.compiling.seen import Seen
from erythroxy_tx.compiling.seen import line_of
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.errors import RetraceError

_MOST = 12  # changes in a message


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
    told = list(found[1]) if found else []
    own = [change for change in (around[1] if around else []) if change.kind not in ("setting", "function")]
    same = {(change.kind, change.before, change.after) for change in own}
    told = own + [change for change in told if (change.kind, change.before, change.after) not in same]
    if call is not None and call.api:
        told = [change for change in told if change.kind != "function"]
    lines = [f"{_head(armed)}: {_what(name, call)} would be {_stage(stage, call)}, {line}"]
    lines += [f"inside of {_head(scope)}" for scope in scopes if scope is not armed and scope.watcher.armed]
    lines += [f"  {change}" for change in told[:_MOST]]
    lines += [f"  … and {len(told) - _MOST} more"] * (len(told) > _MOST)
    lines += [] if told else [f"  {_unknown(call, now, inner)}"]
    lines.append(f"Expected {armed.watcher.expected}. Stopped before it ran; what is compiled stays.")
    lines += _fixes(told, call)
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
    name, where = name_of(call.function).rpartition(".")[2], line_of(call.function)
    return f"{name} ({where})" if where else name


def _stage(stage: str, call: JitCall | None) -> str:
    if call is not None and call.only_traced:
        return "traced, to be looked at only"
    return "traced and compiled" if stage == "trace" else "compiled, from a trace that is known"


def _unknown(call: JitCall | None, now: Seen | None, inner: list[Seen]) -> str:
    if call is None or now is None:
        return "What it was before is not known: it is made by jax.grad or jax.vmap, of which no arguments are seen."
    if not inner:
        return f"It was not compiled before, as far as was seen; now with {_called(now)}."
    if call.api:
        return "The arguments are those of an earlier call: what it is given to run is a new function at each call."
    return (
        "Nothing that can be seen differs from an earlier call: not the arguments, the settings, nor the function. It "
        "was dropped (clear_cache), or depends on something that it captures."
    )


def _called(seen: Seen) -> str:
    given = [f"{path}: {leaf.told}" for path, leaf in seen.leaves.items()]
    return ", ".join(given[:_MOST]) + " …" * (len(given) > _MOST) if given else "no arguments"


def _fixes(told: list[Change], call: JitCall | None) -> list[str]:
    by_fix: dict[str, list[str]] = {}
    for change in told:
        by_fix.setdefault(change.fix, []).append(change.path)
    fixes = [f"{', '.join(paths[:4])}{' …' * (len(paths) > 4)}: {fix}" for fix, paths in by_fix.items()]
    if call is not None and call.api:
        fixes.insert(0, f"put it into a function under jax.jit, where {call.api} is a part of one program")
    if not fixes:
        fixes = ["run it once in the warm-up: a larger warmup=, or once before the block"]
    return [f"Fix: {fixes[0]}", *(f"     {fix}" for fix in fixes[1:])]
