"""What differs between two calls, each difference with its fix. Not here: what a call is (`seen.py`), and the
message as a whole (`reason.py`).
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from erythroxy_tx.compiling.seen import LEFT_OUT
from erythroxy_tx.compiling.seen import Fixed
from erythroxy_tx.compiling.seen import Node
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

    - `kind`: `"shape"`, `"dtype"`, `"weak type"`, `"place"`, `"static"`, `"value"`, `"structure"`, `"aux data"`,
      `"keyword"`, `"jit option"`, `"setting"`, `"transform"` or `"function"`.
    - `path`: of the leaf, in the names of the function's own arguments.
    - `before`, `after`: what it was and is, in words.
    - `fix`: what would keep it.
    - `of`: the function whose argument it is, where that is not the guarded one.
    """

    kind: str
    path: str
    before: str
    after: str
    fix: str
    of: str = ""

    @property
    def place(self) -> str:
        """The path, and whose it is."""
        return f"{self.path} of {self.of}" if self.of else self.path

    def __str__(self) -> str:
        return f"{self.place}: {self.before} → {self.after}"


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
    """The earlier call that a call differs least from, the newest of them, and the differences.

    Calls of this very function come before those of others that were defined in the same place, and of those only
    the ones that are gone count: two functions of one line that live side by side are two functions.
    """
    fn = now.function()
    own = [seen for seen in earlier if fn is None or seen.function() is fn]
    gone = [seen for seen in earlier if seen.function() is None]
    return min(((seen, changes(seen, now)) for seen in own or gone), key=lambda pair: len(pair[1]), default=None)


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
        yield Change("shape", path, _kind(old), f"{_kind(new)}, another rank", "pass it with the same axes each time")
    elif old.shape != new.shape:
        axes = [i for i, (a, b) in enumerate(zip(old.shape, new.shape, strict=True)) if a != b]
        fix = "pad it to one length, or drop the last partial batch"
        yield Change("shape", path, old.told, f"{new.told}, axis {' and '.join(map(str, axes))}", fix)
    if len(old.shape) == len(new.shape) or new.told.partition("[")[0] != old.told.partition("[")[0]:
        yield from _of_type(path, old, new)
    if old.place != new.place:
        fix = "commit it once: jax.device_put(x, where it belongs) before the loop"
        yield Change("place", path, old.place or "uncommitted", new.place or "uncommitted", fix)


def _of_type(path: str, old: Traced, new: Traced) -> Iterator[Change]:
    if "key<" in old.dtype + new.dtype and old.dtype != new.dtype:
        yield Change("dtype", path, _kind(old), _kind(new), "make every key in one way: jax.random.key")
    elif old.dtype != new.dtype and old.python and new.python:
        yield Change("dtype", path, _kind(old), _kind(new), f"pass a {old.python} each time: {old.python}({new.value})")
    elif old.dtype != new.dtype:
        yield Change(
            "dtype", path, _kind(old), _kind(new), f"convert it, before the call: jnp.asarray(x, '{old.dtype}')"
        )
    elif old.weak and not new.weak:
        yield Change("weak type", path, _kind(old), _kind(new), f"start it as jnp.{old.dtype}({old.value})")
    elif new.weak and not old.weak:
        yield Change("weak type", path, _kind(old), _kind(new), f"pass it as jnp.{old.dtype}({new.value})")


def _kind(leaf: Traced) -> str:
    weak = f" weakly typed{f', a Python {leaf.python}' * bool(leaf.python)}"
    return leaf.told + weak * leaf.weak


def _of_fixed(path: str, old: Any, new: Any) -> Iterator[Change]:
    if LEFT_OUT in (getattr(old, "kind", ""), getattr(new, "kind", "")):
        yield Change("static", path, _any(old), _any(new), "pass it each time, or never")
    elif isinstance(old, Traced) or isinstance(new, Traced):
        fix = "pass an array each time, or a static value each time"
        yield Change("static", path, _any(old), _any(new), fix)
    elif (old.kind, old.told) != (new.kind, new.told):
        numbers = {old.kind, new.kind} <= {"int", "float"}
        fix = "; pass it as an array, which is traced, where only its value matters" if numbers else ""
        other = "" if old.kind == new.kind else f", of type {new.kind}, was {old.kind}"
        yield Change("static", path, old.told, new.told + other, f"each static value is a program of its own{fix}")
    else:
        holds = f", which holds functions that are made anew at {new.made_at}" if new.made_at else ""
        fix = "build it once, before the loop, and pass the same object"
        yield Change("static", path, f"{old.told}", f"another {new.kind} that is not equal to it{holds}", fix)


def _any(leaf: Traced | Fixed) -> str:
    if isinstance(leaf, Traced):
        return _kind(leaf)
    return leaf.told if leaf.kind == LEFT_OUT else f"{leaf.told} (static)"


def numbers(before: Seen, after: Seen) -> list[Change]:
    """Python's numbers that have another value: no change of a program, unless a function takes one for a size."""
    pairs = [(path, before.leaves.get(path), new) for path, new in after.leaves.items()]
    fix = "keep it, if a shape or a branch depends on it"
    return [
        Change("value", path, old.value, new.value, fix)
        for path, old, new in pairs
        if isinstance(old, Traced) and isinstance(new, Traced) and old.python and new.python and old.value != new.value
    ]


def padding(told: list[Change], now: Seen) -> str:
    """The `pad_static` that gives a function one program for the lengths that changed, as it is written; nothing where
    what changed are no lengths of whole arguments.
    """
    shapes = {change.path: change for change in told if change.kind == "shape"}
    axes: list[int | None] = []
    most = 0
    for name in now.by_position:
        own = {
            path: leaf for path, leaf in now.leaves.items() if path == name or path.startswith((f"{name}[", f"{name}."))
        }
        changed = [shapes[path].after.partition(", axis ")[2] for path in own if path in shapes]
        arrays = [path for path, leaf in own.items() if isinstance(leaf, Traced) and leaf.shape]
        if changed and (len(set(changed)) > 1 or len(changed) < len(arrays) or not changed[0].isdigit()):
            return ""
        axes.append(int(changed[0]) if changed else 0 if not arrays else None)
        most = max([most, *(_length(shapes[path], int(changed[0])) for path in own if path in shapes)])
    if not shapes or set(shapes) - set(now.leaves) or not most or now.by_keyword:
        return ""
    whole = ", ".join(map(str, axes)) + "," * (len(axes) == 1)
    return f"@tx.pad_static({most}{'' if set(axes) == {0} else f', in_axes=({whole})'})"


def _length(change: Change, axis: int) -> int:
    """The larger of the lengths along an axis."""
    return max(int(told.partition("[")[2].partition("]")[0].split(",")[axis]) for told in (change.before, change.after))


def _of_structure(before: Seen, after: Seen) -> Iterator[Change]:
    told: set[str] = set()
    everything = {**before.nodes, **before.leaves}, {**after.nodes, **after.leaves}
    for path in [*everything[0], *(path for path in everything[1] if path not in everything[0])]:
        if any(above in told for above in _above(path)):
            continue
        old, new = everything[0].get(path), everything[1].get(path)
        if isinstance(old, Node) and isinstance(new, Node):
            if old.type_id != new.type_id:
                told.add(path)
                other = " (another class of that name)" if old.told == new.told else ""
                yield _structure(path, old.told, new.told + other)
            elif old.aux is not None and new.aux is not None and old.aux != new.aux:
                fix = "keep what is not an array in it equal from call to call"
                same = old.aux.told == new.aux.told
                yield Change("aux data", path, old.aux.told, "another that is not equal" if same else new.aux.told, fix)
        elif old is None or new is None or isinstance(old, Node) or isinstance(new, Node):
            told.add(path)
            yield _structure(path, _there(old), _there(new))


def _above(path: str) -> Iterator[str]:
    """A path of a leaf, and those of the nodes around it."""
    yield path
    for i in range(len(path) - 1, 0, -1):
        if path[i] in "[.":
            yield path[:i]


def _structure(path: str, old: str, new: str) -> Change:
    fix = "pass the same structure each time; an array of zeros in place of None" if "None" in (old, new) else ""
    return Change("structure", path, old, new, fix or "pass the same structure each time")


def _there(found: Any) -> str:
    if found is None:
        return "(not there)"
    return _any(found) if isinstance(found, (Traced, Fixed)) else str(found.told)


def _of_passing(before: Seen, after: Seen) -> Iterator[Change]:
    how = ("by position", "by keyword")
    moved = [(name, how) for name in before.by_position if name in after.by_keyword]
    moved += [(name, how[::-1]) for name in after.by_position if name in before.by_keyword]
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
    now, then = after.function(), before.function()
    if now is not None and then is not now:
        fix = "make it once, before the loop: jit keeps its programs by the function object"
        what = "a new function object" if then is None else "another function"
        yield Change("function", after.name, "the one before", f"{what} from {_line(now)}", fix)


def _line(fn: Callable[..., Any]) -> str:
    return f"the same line, {line}" if (line := line_of(fn)) else "the same place"
