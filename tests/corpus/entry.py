"""What an entry of the corpus is, and short ways to write one.

Not here: which values the inputs take (`draws.py`), and the entries themselves, one module a family.
"""

import dataclasses
import inspect
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import numpy as np

from .draws import Draw


@dataclasses.dataclass(frozen=True)
class Entry:
    """A function of rows as a user would write it, with inputs of any number of rows.

    Attributes:
        name: unique; its first word is the function it is about.
        fn: takes the arrays that `inputs` makes, by position.
        inputs: from a number of rows to numpy arrays; the same number gives the same arrays.
        in_axes: as in `jax.vmap`: which axis of an argument is its rows, None for a shared one.
        family: "numpy", "nn", "special", "stats", "equinox", "optax" or "composition".
        at_least: the fewest rows that the function takes under plain `jax.jit`.
    """

    name: str
    fn: Callable[..., Any]
    inputs: Callable[[int], tuple[np.ndarray, ...]]
    in_axes: Any = 0
    family: str = ""
    at_least: int = 1


@dataclasses.dataclass(frozen=True)
class Family:
    """Makes the entries of one family. `prefix` opens their names."""

    name: str
    prefix: str = ""

    def entry(self, name: str, fn: Callable[..., Any], *draws: Draw, at_least: int = 1) -> Entry:
        plain = fn if inspect.isfunction(fn) else calling(fn)
        axes = tuple(draw.axis for draw in draws)

        def inputs(n: int) -> tuple[np.ndarray, ...]:
            rng = np.random.default_rng(n)
            return tuple(draw.sample(rng, n) for draw in draws)

        in_axes = 0 if set(axes) == {0} else axes
        return Entry(f"{self.prefix}{name}", plain, inputs, in_axes, self.name, at_least)

    def call(self, namespace: Any, name: str, *draws: Draw, at_least: int = 1, note: str = "", **fixed: Any) -> Entry:
        """`namespace.name` called on the draws, with what is `fixed` by keyword; both are told in the entry's name."""
        told = [f"{key}={value}" for key, value in fixed.items()]
        full = " ".join([name, *([note] if note else []), *told])
        return self.entry(full, calling(getattr(namespace, name), **fixed), *draws, at_least=at_least)

    def along(
        self,
        namespace: Any,
        name: str,
        *draws: Draw,
        axes: tuple[Any, ...] = (0, 1, None),
        at_least: int = 1,
        **fixed: Any,
    ) -> Iterator[Entry]:
        """One entry for each axis; only where the axis is not 1 does `at_least` apply."""
        for axis in axes:
            fewest = 1 if axis in {1, -1} else at_least
            yield self.call(namespace, name, *draws, at_least=fewest, axis=axis, **fixed)


def calling(fn: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """A plain function, so that nothing of `fn` but its name and its results is seen."""

    def call(*arrays: Any) -> Any:
        return fn(*arrays, **fixed)

    call.__name__ = call.__qualname__ = getattr(fn, "__name__", "call")
    return call


def named(namespace: Any, names: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of those names that this version of the library has, names first."""
    for name in names.split():
        if hasattr(namespace, name):
            yield name, getattr(namespace, name)
