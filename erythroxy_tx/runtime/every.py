"""`every`: a function that runs at each n-th step, on the host and as a branch of a compiled program. Not here: what
is reduced over the steps between (`metrics.py`).
"""

import copy
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from erythroxy_tx import _compat
from erythroxy_tx.core.callables import is_leaf
from erythroxy_tx.core.signature import is_traced
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.signature import shape_of
from erythroxy_tx.core.signature import signature_of
from erythroxy_tx.errors import TransformOrderError

_NONE: Any = object()
_MOST = 2**31 - 1


def every(n: int, otherwise: str = "last") -> Callable[[Callable[..., Any]], "Every"]:
    """Run a function at each n-th step only::

        every(n)(f)(*args, step=i)  =  f(*args)              where i % n == 0
                                       the last value        elsewhere; None with otherwise="skip"

    On the host the steps are the calls of the decorated function, which counts them for itself, and for each instance
    whose method it is; or `step=` says which it is, so that a run that starts again goes on as it was. Inside of `jit`
    and kin nothing can be counted or kept: `f(*args, step=i, last=previous)` is a `lax.cond`, a branch that does not
    run where it is not due. `step` and `last` are the gate's; `f` does not see them.

    **Arguments:**

    - `n`: a Python int ≥ 1.
    - `otherwise`: what comes between. `"last"`: the last value, which the gate keeps alive on the host, and takes as
        `last=` inside of a trace, with the structure, shapes and dtypes of the result. `"skip"`: None; inside of a
        trace the function has to return None as well, its work being an effect such as `jax.debug.callback`.

    **Returns:** a decorator. The decorated function has `reset()`, which forgets the count and the last value.

    **Raises:** `TransformOrderError` inside of a trace without `step`, and under `vmap` over the step, where both
    branches would run at every step; `TypeError` for a step that is no integer, or a `last` that is not like the
    result, with each difference; `ValueError` where there is no last value yet, or for a bad parameter.

    >>> import erythroxy_tx as tx
    >>> @tx.every(3)
    ... def encode(x):
    ...     return 2 * x
    >>> [encode(x) for x in range(7)]
    [0, 0, 0, 6, 6, 6, 12]
    >>> encode(50, step=4), encode(50, step=6)
    (12, 100)
    """
    if callable(n):
        raise TypeError(f"tx.every got {name_of(n)} in place of n. Expected @tx.every(5).")
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= _MOST:
        raise ValueError(f"tx.every got n={n!r}. Expected a number of steps, a Python int from 1 to {_MOST}.")
    if otherwise not in ("last", "skip"):
        raise ValueError(f'tx.every got otherwise={otherwise!r}. Expected "last" or "skip".')
    return lambda fn: Every(fn, n, otherwise)


class Every:
    """A function behind a gate. Made by `every`."""

    def __init__(self, fn: Callable[..., Any], n: int, otherwise: str) -> None:
        if not callable(fn):
            raise TypeError(
                f"tx.every({n}) got {shape_of(fn)} in place of a function. Fix: @classmethod goes above it."
            )
        self._title = f"tx.every({n})({name_of(fn)})"
        if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
            raise TypeError(
                f"{self._title} gates a function whose body runs after the call. Expected one that returns."
            )
        signature = signature_of(fn)
        if taken := sorted({"step", "last"} & set(signature.parameters if signature else ())):
            raise TypeError(f"{self._title} has a parameter {taken[0]}, which is the gate's. Fix: another name.")
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._n, self._skips = fn, n, otherwise == "skip"
        self._owner: type | None = None  # whose method it is
        self._count: _Count | None = _Count()
        self._counts: dict[int, tuple[weakref.ref, _Count]] = {}  # of instances, by identity
        self._is_due = custom_vmap(lambda step: lax.rem(step, jnp.asarray(n, step.dtype)) == 0)
        self._is_due.def_vmap(self._refuse_batch)

    def __repr__(self) -> str:
        return self._title

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or not hasattr(self._fn, "__get__"):
            return self
        if isinstance(instance, type):
            return types.MethodType(self, instance)
        bound = copy.copy(self)
        bound._fn, bound._count, bound._owner = self._fn.__get__(instance, owner), self._count_of(instance), None
        return bound

    def _count_of(self, instance: Any) -> "_Count | None":
        """None for what is a value to JAX: it is another object after each step, of which none is called twice."""
        if not type(instance).__weakrefoffset__ or not is_leaf(instance):
            return None
        key, found = id(instance), self._counts.get(id(instance))
        if found is None or found[0]() is not instance:
            counts = self._counts
            found = counts[key] = weakref.ref(instance, lambda ref: _leave(counts, key, ref)), _Count()
        return found[1]

    def reset(self) -> None:
        """Forget how many calls there were, and the last value."""
        self._own_count().__init__()  # type: ignore[misc]

    def _own_count(self) -> "_Count":
        if self._count is None:
            raise ValueError(
                f"{self._title} is a method of an object that is a pytree, or has no weak references: it cannot keep a "
                'count or a last value. Fix: step=, and last= or otherwise="skip".'
            )
        return self._count

    def __call__(self, /, *args: Any, step: Any = _NONE, last: Any = _NONE, **kwargs: Any) -> Any:
        if self._owner is not None and args and isinstance(args[0], self._owner):  # A.method(instance)
            return self.__get__(args[0])(*args[1:], step=step, last=last, **kwargs)
        if self._skips and last is not _NONE:
            raise TypeError(f'{self._title} got last= with otherwise="skip", which returns None. Fix: leave it out.')
        if _compat.outside_trace():
            return self._on_host(functools.partial(self._fn, *args, **kwargs), step, last)
        return self._in_trace(args, kwargs, step, last)

    # ------------------------------------------------------------------ on the host

    def _on_host(self, run: Callable[[], Any], step: Any, last: Any) -> Any:
        counts = step is _NONE
        if isinstance(step, jax.Array):
            raise TypeError(
                f"{self._title} got step: {shape_of(step)} on the device, which the host had to wait for. Expected a "
                "Python int. Fix: count on the host, or call it in a jitted function."
            )
        is_due = (self._own_count().calls if counts else self._known(step)) % self._n == 0
        if is_due:
            value = run()
            if not self._skips and self._count is not None:
                self._count.last = value
        else:
            value = None if self._skips else self._own_count().last if last is _NONE else last
            if value is _NONE:
                raise ValueError(
                    f"{self._title} got step={step}, at which it does not run, and has no last value. Expected a first "
                    f"step that is a multiple of {self._n}. Fix: last=, the value of before, out of a checkpoint."
                )
        if counts:  # a call that raised does not count
            self._own_count().calls += 1
        return value

    def _known(self, step: Any) -> int:
        if isinstance(step, bool) or not isinstance(step, int | np.integer):
            raise TypeError(f"{self._title} got step: {shape_of(step)}. Expected one integer.")
        return int(step)

    # ------------------------------------------------------------------ inside of a trace

    def _in_trace(self, args: tuple, kwargs: dict[str, Any], step: Any, last: Any) -> Any:
        if step is _NONE:
            raise TransformOrderError(
                f"{self._title} was called inside of a trace (jit, scan, vmap, grad), which runs once for all steps: "
                f"nothing counts there. Expected step=, its number{'' if self._skips else ', and last='}. Fix: the "
                "counter of the loop; or call it outside."
            )
        if not self._skips and last is _NONE:
            raise TypeError(
                f"{self._title} was called inside of a trace without last=, and cannot keep a value there. Expected "
                "what to return between, of the structure, shapes and dtypes of the result. Fix: carry it along."
            )
        last = None if self._skips else self._as_arrays("last", last)
        if not isinstance(step, jax.Array):
            return self._like(args, kwargs, last) if self._known(step) % self._n == 0 else last
        if step.shape or not jnp.issubdtype(step.dtype, jnp.integer):
            raise TypeError(f"{self._title} got step: {shape_of(step)}. Expected one integer.")
        if step.dtype.itemsize < 4:  # of few bits, which may not hold n
            step = step.astype(jnp.int32)
        # What the branches get they get as arguments: a buffer of metrics would else be one of outside.
        leaves, treedef = jax.tree.flatten((args, kwargs, last))
        moves = [isinstance(leaf, jax.Array) for leaf in leaves]

        def branch(is_due: bool, *moved: Any) -> Any:
            rest = iter(moved)
            args, kwargs, last = jax.tree.unflatten(
                treedef, [next(rest) if moving else leaf for moving, leaf in zip(moves, leaves, strict=True)]
            )
            return self._like(args, kwargs, last) if is_due else last

        moved = [leaf for moving, leaf in zip(moves, leaves, strict=True) if moving]
        due, not_due = (functools.partial(branch, is_due) for is_due in (True, False))
        return lax.cond(self._is_due(step), due, not_due, *moved)

    def _as_arrays(self, name: str, tree: Any) -> Any:
        for path, leaf in jtu.tree_flatten_with_path(tree)[0]:
            if not is_traced(leaf):
                raise TypeError(
                    f"{self._title} got {name}{jtu.keystr(path)}: {shape_of(leaf)}. Expected arrays. Fix: those of a "
                    "module alone, eqx.filter(model, eqx.is_array)."
                )
        return jax.tree.map(jnp.asarray, tree)

    def _like(self, args: tuple, kwargs: dict[str, Any], last: Any) -> Any:
        """The result, which has to be like the last one."""
        found = self._as_arrays("result", self._fn(*args, **kwargs))
        if self._skips and jax.tree.leaves(found):
            raise TypeError(
                f"{self._title} returned {told(found)} inside of a trace, where what is skipped returns None. Expected "
                'None. Fix: otherwise="last", and last= the value to return between.'
            )
        have, want = told(last), told(found)
        trees: Any = [jtu.tree_structure(each) for each in (last, found)]
        if trees[0] != trees[1] or have != want:
            raise TypeError(
                f"{self._title} got last of {have}, and returned {want}. Expected the same structure, shapes and "
                "dtypes. Fix: a first value such as jax.tree.map(jnp.zeros_like, f(x))."
            )
        return found

    def _refuse_batch(self, size: int, *_: Any) -> Any:
        raise TransformOrderError(
            f"{self._title} got {size} steps under vmap: a branch on a batch is a select, which runs the function at "
            "every step. Expected one step for the batch. Fix: in_axes=None for it, or vmap inside of the function."
        )


class _Count:
    """How many calls there were, and the last value."""

    def __init__(self) -> None:
        self.calls, self.last = 0, _NONE


def _leave(counts: dict[int, Any], key: int, ref: weakref.ref) -> None:
    if counts.get(key, (None,))[0] is ref:
        del counts[key]


def told(tree: Any) -> str:
    """A pytree of arrays in words, each leaf by its path."""
    leaves = jtu.tree_flatten_with_path(tree)[0]
    named = [f"{jtu.keystr(path)}: {shape_of(leaf)}" if path else shape_of(leaf) for path, leaf in leaves]
    return ", ".join(named) or "no arrays"
