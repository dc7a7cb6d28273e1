"""What differs between two calls, each difference with its fix. Not here: what a call is (`seen.py`), and the
message as a whole (`reason.py`).
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from erythroxy_tx.compiling.seen import Fixed
from erythroxy_tx.compiling.seen import Seen
from erythroxy_tx.compiling.seen import Traced
from erythroxy_tx.compiling.seen import line_of

_SETTINGS = {
    "jax_enable_x64": "64-bit mode",
    "jax_default_matmul_precision": "matmul precision",
    "jax_default_device": "default device",
    "abstract_mesh_context_manager": "mesh",
    "mesh_context_manager": "mesh",
    "jax_numpy_dtype_promotion": "dtype promotion",
    "jax_disable_jit": "disable_jit",
}


@dataclasses.dataclass(frozen=True)
class Change:
    """One difference between a call and an earlier one.

    - `kind`: `"shape"`, `"dtype"`, `"weak type"`, `"place"`, `"static"`, `"structure"`, `"aux data"`, `"keyword"`,
      `"jit option"`, `"setting"`, `"transform"` or `"function"`.
    - `path`: of the leaf, in the names of the function's own arguments.
    - `before`, `after`: what it was and is, in words.
    - `fix`: what would keep it.
    """

    kind: str
    path: str
    before: str
    after: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}: {self.before} → {self.after}"


def changes(before: Seen, after: Seen) -> list[Change]:
    """All differences between two calls of one function, in the order in which a person would look."""
    if before.transforms != after.transforms:  # its arguments are then what the transform makes of them
        return list(_of_jit(before, after))
    return [
        *_of_leaves(before, after),
        *_of_structure(before, after),
        *_of_passing(before, after),
        *_of_jit(before, after),
        *_of_settings(before, after),
        *_of_function(before, after),
    ]


def closest(earlier: list[Seen], now: Seen) -> tuple[Seen, list[Change]] | None:
    """The earlier call that a call differs least from, the newest of them, and the differences."""
    return min(((seen, changes(seen, now)) for seen in earlier), key=lambda pair: len(pair[1]), default=None)


def _of_leaves(before: Seen, after: Seen) -> Iterator[Change]:
    for path, new in after.leaves.items():
        old = before.leaves.get(path)
        if old is not None and old != new:
            if isinstance(old, Traced) and isinstance(new, Traced):
                yield from _of_traced(path, old, new)
            else:
                yield from _of_fixed(path, old, new)


def _of_traced(path: str, old: Traced, new: Traced) -> Iterator[Change]:
    if len(old.shape) != len(new.shape):
        yield Change("shape", path, old.told, f"{new.told}, another rank", "pass it with the same axes each time")
    elif old.shape != new.shape:
        axes = [i for i, (a, b) in enumerate(zip(old.shape, new.shape, strict=True)) if a != b]
        most = max(old.shape[axes[0]], new.shape[axes[0]])
        fix = f"@tx.pad_static({most}) for lengths that vary, or drop the last partial batch"
        yield Change("shape", path, old.told, f"{new.told}, axis {' and '.join(map(str, axes))}", fix)
    if old.dtype != new.dtype:
        fix = f"convert it once, before the loop, to {old.dtype}"
        yield Change("dtype", path, _kind(old), _kind(new), fix)
    elif old.weak != new.weak:
        yield Change("weak type", path, _kind(old), _kind(new), f"start it as jnp.{old.dtype}({old.value})")
    if old.place != new.place:
        fix = "commit it once: jax.device_put(x, where it belongs) before the loop"
        yield Change("place", path, old.place or "uncommitted", new.place or "uncommitted", fix)


def _kind(leaf: Traced) -> str:
    weak = f" weakly typed{f', a Python {leaf.python}' * bool(leaf.python)}"
    return leaf.told + weak * leaf.weak


def _of_fixed(path: str, old: Any, new: Any) -> Iterator[Change]:
    if isinstance(old, Traced) or isinstance(new, Traced):
        fix = "pass an array each time, or a static value each time"
        yield Change("static", path, _any(old), _any(new), fix)
    elif (old.kind, old.told) != (new.kind, new.told):
        number = {"int", "float", "bool"} & {old.kind, new.kind}
        fix = "pass it as an array, which is traced, if the program may not depend on it" if number else "keep it"
        other = "" if old.kind == new.kind else f" (a {new.kind}, was a {old.kind})"
        yield Change("static", path, old.told, new.told + other, f"{fix}; each static value is a program of its own")
    else:
        holds = f", which holds functions that are made anew at {new.made_at}" if new.made_at else ""
        fix = "build it once, before the loop, and pass the same object"
        yield Change("static", path, f"{old.told}", f"another {new.kind} that is not equal to it{holds}", fix)


def _any(leaf: Traced | Fixed) -> str:
    return _kind(leaf) if isinstance(leaf, Traced) else f"{leaf.told} (static)"


def _of_structure(before: Seen, after: Seen) -> Iterator[Change]:
    told: list[str] = []
    everything = {**before.nodes, **before.leaves}, {**after.nodes, **after.leaves}
    for path in [*everything[0], *(path for path in everything[1] if path not in everything[0])]:
        if any(path.startswith(above) for above in told):
            continue
        old, new = everything[0].get(path), everything[1].get(path)
        if type(old) is type(new) and path in before.nodes:
            assert old is not None
            assert new is not None
            kinds = [node.told.partition(" of ")[0] for node in (old, new)]
            if kinds[0] != kinds[1]:
                told.append(path)
                yield _structure(path, old.told, new.told)
            elif old.aux != new.aux:  # type: ignore[union-attr]
                fix = "keep what is not an array in it equal from call to call"
                yield Change("aux data", path, old.aux, new.aux, fix)  # type: ignore[union-attr]
        elif (old is None) != (new is None) or (path in before.nodes) != (path in after.nodes):
            told.append(path)
            yield _structure(path, _there(old), _there(new))


def _structure(path: str, old: str, new: str) -> Change:
    fix = "pass the same structure each time; an array of zeros in place of None" if "None" in (old, new) else ""
    return Change("structure", path, old, new, fix or "pass the same structure each time")


def _there(found: Any) -> str:
    if found is None:
        return "(not there)"
    return _any(found) if isinstance(found, (Traced, Fixed)) else str(found.told)


def _of_passing(before: Seen, after: Seen) -> Iterator[Change]:
    how = ("by position", "by keyword")
    moved = [(name, how) for name in sorted(before.by_position & after.by_keyword)]
    moved += [(name, how[::-1]) for name in sorted(before.by_keyword & after.by_position)]
    for name, (old, new) in moved:
        yield Change("keyword", name, f"passed {old}", f"passed {new}", "pass it the same way each time")


def _of_jit(before: Seen, after: Seen) -> Iterator[Change]:
    fix = "jit the function once, and call what it returned"
    for name in sorted({*before.options, *after.options}):
        old, new = before.options.get(name, "not given"), after.options.get(name, "not given")
        if old != new:
            yield Change("jit option", name, str(old), str(new), fix)
    if before.transforms != after.transforms:
        told = [" of ".join(seen.transforms) or "called directly" for seen in (before, after)]
        fix = "warm it up under this transform too (a larger warmup=)"
        yield Change("transform", after.name, told[0], f"under {told[1]}" if after.transforms else told[1], fix)


def _of_settings(before: Seen, after: Seen) -> Iterator[Change]:
    for name in after.context:
        old, new = before.context.get(name), after.context[name]
        if old != new:
            fix = "set it once, around the warm-up and the loop"
            yield Change("setting", _SETTINGS.get(name, name), str(old), str(new), fix)


def _of_function(before: Seen, after: Seen) -> Iterator[Change]:
    now = after.function()
    if now is not None and before.function() is not now:
        fix = "make it once, before the loop: jit keeps its programs by the function object"
        yield Change("function", after.name, "the one before", f"a new function object from {_line(now)}", fix)


def _line(fn: Callable[..., Any]) -> str:
    return f"the same line, {line}" if (line := line_of(fn)) else "the same place"
