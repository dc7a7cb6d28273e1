"""`precompute`: what a step computes from some of its arguments alone is computed once, and kept until they change. Not
here: how a program is cut (`program/split.py`).
"""

import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu

from erythroxy_tx import _compat
from erythroxy_tx.core.callables import is_leaf
from erythroxy_tx.core.callables import opened
from erythroxy_tx.core.captured import captured_arrays
from erythroxy_tx.core.captured import check_captured
from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.freeze import Freeze
from erythroxy_tx.core.freeze import freeze
from erythroxy_tx.core.kept import Kept
from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import named_leaves
from erythroxy_tx.core.signature import positional_names
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import signature_of
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.core.static import Static
from erythroxy_tx.core.static import declare
from erythroxy_tx.core.static import split
from erythroxy_tx.core.static import undeclare
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.core.transform import with_innermost
from erythroxy_tx.errors import TransformOrderError
from erythroxy_tx.program import in_two
from erythroxy_tx.program.exact import exact_results
from erythroxy_tx.program.split import Split
from erythroxy_tx.program.split import Terms
from erythroxy_tx.units import format_bytes
from erythroxy_tx.units import parse_bytes

Leaves = list[Any]


def precompute(
    *argnames: str, budget: int | str | None = None, static_argnames: str | tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Any]:
    """Compute once what a step computes from the named arguments alone, and keep it until one of them is new.

    `precompute(...)(f)(x) = f(x)`. The program of the step is cut in two: what depends on the named arguments (and on
    captured arrays) and nothing else, through `jit`, `jax.checkpoint` and scans, runs when they are new; each call runs
    the rest. An argument is another one if it is another array: JAX's arrays never change, a number is compared by its
    value, and an array of numpy's is made read-only while it is in use, or checksummed at each call where something
    else may write to it, and is computed with again once it has changed.

    Only what is worth it is kept: products, factorisations, sums, sorts, exponentials and the like. Steps under `grad`
    and `vmap` work with respect to the other arguments. It goes outermost: inside of `jit` nothing could be kept.

    **Arguments:**

    - `argnames`: names of parameters of the function.
    - `budget`: how many bytes may be kept, an int or `"1GiB"`; the largest values are computed at each step until the
        others fit. By default all are kept.
    - `static_argnames`: as in `jax.jit`.

    **Returns:** a decorator. The decorated function is compiled.

    **Raises:** `ValueError` for a name that is no parameter. At a call `TransformOrderError`, inside of a compiled
    function, and where a named argument is itself differentiated or batched.

    >>> import jax, jax.numpy as jnp, erythroxy_tx as tx
    >>> @tx.precompute("places")
    ... def step(state, places):
    ...     kernel = jnp.exp(-((places[:, None] - places) ** 2).sum(-1))
    ...     return state + 0.1 * kernel @ state
    >>> places = jnp.ones((100, 3))
    >>> state = step(step(jnp.ones(100), places), places)
    >>> print(tx.explain(step, state, places))  # doctest: +ELLIPSIS
    step, in tx.precompute
    tx.precompute: computed once for each places: 39.1 KiB
        f32[100,100], 39.1 KiB: exp at ...
    ...
    """
    if not argnames or not all(isinstance(name, str) for name in argnames):
        raise TypeError(
            f"tx.precompute got {', '.join(map(shape_of, argnames)) or 'no names'}. Expected the names of "
            'arguments that rarely change. Fix: @tx.precompute("geometry").'
        )
    limit = None if budget is None else parse_bytes(budget, "budget")
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)

    def wrap(fn: Callable[..., Any]) -> Any:
        wrapper = Precompute.around(fn, argnames=argnames, budget=limit, static_argnames=names)
        _check_names(unwrapped(wrapper), argnames)
        return wrapper

    return wrap


class Precompute(Transform):
    """A step that keeps what it computed from some of its arguments. Made by `precompute`."""

    argnames: tuple[str, ...] = eqx.field(static=True, kw_only=True)
    budget: int | None = eqx.field(static=True, kw_only=True)
    static_argnames: tuple[str, ...] = eqx.field(static=True, kw_only=True)

    name = "tx.precompute"
    usage = '@tx.precompute("geometry")'
    compiles = True

    def _static_names(self) -> tuple[str, ...]:
        return self.static_argnames

    def _runner(self) -> Callable[..., Any]:
        kept = self._kept("precomputed", Kept)

        def run(*args: Any, **kwargs: Any) -> Any:
            if _compat.inside_staging():
                raise TransformOrderError(
                    f"{self._label} was called inside of a compiled function (jit, scan, eval_shape), where nothing is "
                    "kept from call to call. Expected it outermost. Fix: decorate the function that is jitted, with "
                    "tx.precompute outside."
                )
            cut, leaves = self._cut(args, kwargs)
            known = cut.of_known(leaves)
            for at, leaf in enumerate(known):
                if isinstance(leaf, jax.core.Tracer):
                    raise TransformOrderError(
                        f"{self._label} got {self._known_names(args, kwargs)[at]}: {shape_of(leaf)}, which is "
                        "differentiated or batched. Expected an array. Fix: do not name it, or take the derivative "
                        "with respect to the others."
                    )
            check_captured(self._label, cut.captured)
            values, placed = kept.of(cut.form, known, cut.first)
            there = iter(placed)
            leaves = [next(there) if is_known else leaf for leaf, is_known in zip(leaves, cut.known, strict=True)]
            return jtu.tree_unflatten(cut.structure, cut.rest(values, *leaves))

        return run

    @property
    def _label(self) -> str:
        return f"tx.precompute({name_of(unwrapped(self))})"

    def _known_names(self, args: tuple, kwargs: dict[str, Any]) -> list[str]:
        """What to call the leaves of the named arguments, in order."""
        function = unwrapped(self)
        args, kwargs = declare(function, self.static_argnames, args, kwargs)
        leaves = named_leaves(function, args, kwargs)
        return [path for path, leaf in leaves if _root(path) in self.argnames and is_traced(leaf)]

    def _cut(self, args: tuple, kwargs: dict[str, Any]) -> "tuple[Cut, Leaves]":
        """The program for these arguments in two, and the leaves that it takes."""
        cuts: dict[Any, Cut] = self._kept("cuts", dict)
        function = unwrapped(self)
        form = opened(function)
        leaves, structure = jtu.tree_flatten((args, kwargs))
        # A plain function that is called with arrays and numbers alone is told apart by their types.
        is_plain = form is function and is_leaf(function) and not self.static_argnames and all(map(is_traced, leaves))
        quick = is_plain and (structure, tuple(map(jax.typeof, leaves)), _compat.context_key())
        if quick in cuts:
            return cuts[quick], leaves
        whole = self if form is function else with_innermost(self, form)
        named = lambda name, arg: jtu.tree_map(lambda _: _root(name) in self.argnames, arg)  # noqa: E731
        args, kwargs = declare(function, self.static_argnames, args, kwargs)
        marks = jtu.tree_leaves(
            (
                jtu.tree_map(lambda _: False, whole),
                tuple(map(named, positional_names(function, len(args)), args)),
                {key: named(key, arg) for key, arg in kwargs.items()},
            )
        )
        static, dynamic = split((whole, args, kwargs), self._label)
        known = tuple(marks[i] for i in static.traced)
        key = static, known, tuple(map(jax.typeof, dynamic)), _compat.context_key()
        if key not in cuts:
            cuts[key] = self._made(static, known, dynamic)
        if is_plain:
            cuts[quick] = cuts[key]
        return cuts[key], dynamic

    def _made(self, static: Static, known: tuple[bool, ...], leaves: Leaves) -> "Cut":
        def flat(*leaves: Any) -> Any:
            wrapper, args, kwargs = static.merge(leaves)
            args, kwargs = undeclare(args, kwargs)
            return wrapper.fn(*args, **kwargs)

        flat.__name__ = flat.__qualname__ = name_of(unwrapped(self))
        structs = list(map(struct_of, leaves))
        closed, result = jax.make_jaxpr(flat, return_shape=True)(*structs)
        if any(isinstance(constant, jax.core.Tracer) for constant in _compat.all_constants(closed)):
            raise TransformOrderError(
                f"{self._label} captures an array that is differentiated or batched around it. Expected constants. "
                "Fix: pass it as an argument."
            )
        terms = Terms(self.budget, grows=True, own_rules=True)
        away = [gives and not is_known for gives, is_known in zip(_compat.donated(closed), known, strict=True)]
        found = [(name, array) for name, _, array in captured_arrays(closed, unwrapped(self)) if array is not None]
        captured = [(name, freeze([array])[0]) for name, array in found]
        return Cut(
            Split(closed, known, terms),
            known,
            away,
            structs,
            jtu.tree_structure(result),
            captured,
            name_of(unwrapped(self)),
        )

    def _promise(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        cut, _ = self._cut(args, kwargs)
        promises = [Bitwise() if same else AsAccurate(4) for same in cut.exact]
        return jtu.tree_unflatten(cut.structure, promises)

    def _told(self, args: tuple, kwargs: dict[str, Any]) -> list[str]:
        cut, _ = self._cut(args, kwargs)
        names = " and ".join(self.argnames)
        left = [f"over the budget, computed at each call: {each}" for each in cut.over_budget]
        if not cut.moved:
            why = f"fits the budget of {format_bytes(self.budget or 0)}" if left else f"depends on {names} alone"
            return [f"nothing that is worth it {why}", *left]
        total = format_bytes(sum(each.bytes for each in cut.moved))
        return [f"computed once for each {names}: {total}", *map(str, cut.moved), *left]

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower what each call runs: the rest, with what is kept among its arguments."""
        cut, leaves = self._cut(args, kwargs)
        return cut.rest.lower(jax.eval_shape(cut.first, cut.of_known(leaves)), *leaves)


class Cut:
    """A program in two that are compiled: `values = first(known leaves)`, and `rest(values, *leaves)`, to which
    leaves are donated as they were to the function. Programs with first parts of the same `form` can share the values.
    """

    def __init__(
        self,
        cut: Split,
        known: tuple[bool, ...],
        away: list[bool],
        structs: Leaves,
        structure: Any,
        captured: list[tuple[str, Freeze]],
        name: str,
    ) -> None:
        self.moved, self.over_budget = cut.moved, cut.over_budget
        self.captured = captured
        self.known, self.structure = known, structure
        self.exact = exact_results(cut.closed)  # of each result, whether no rounding can differ

        def first(given: Leaves) -> Leaves:
            leaves = iter(given)
            return in_two.first(cut, [next(leaves) if is_known else None for is_known in known])

        def rest(values: Leaves, *leaves: Any) -> Leaves:
            return in_two.rest(cut, list(leaves), values)

        rest.__name__ = rest.__qualname__ = name
        self.first = jax.jit(first)
        self.rest = jax.jit(rest, donate_argnums=[1 + i for i, gives in enumerate(away) if gives])
        closed = jax.make_jaxpr(first)(self.of_known(structs))
        self._consts = list(_compat.all_constants(closed))  # which live as long as their identities are compared
        self.form = str(closed.jaxpr), tuple(map(id, self._consts)), _compat.context_key()

    def of_known(self, leaves: Leaves) -> Leaves:
        """The leaves that the first part takes."""
        return [leaf for leaf, is_known in zip(leaves, self.known, strict=True) if is_known]


def _root(path: str) -> str:
    """The parameter that a path begins with: `gs` of `gs[0].w`."""
    return re.split(r"[\[.]", path)[0]


def _check_names(fn: Callable[..., Any], argnames: tuple[str, ...]) -> None:
    signature = signature_of(fn)
    parameters = signature.parameters if signature else {}
    free = [name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD]
    for name in argnames if parameters else ():
        if name in free or (name not in parameters and not free):
            raise ValueError(
                f"tx.precompute got {name!r}, which is no parameter of {name_of(fn)}{signature}. Expected one of "
                f"{', '.join(name for name in parameters if name not in free)}{', or a keyword' * bool(free)}."
            )
