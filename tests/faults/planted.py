"""What a planted fault is: a transform that is wrong on purpose, with inputs among which `prove` must find one that
shows it. Not here: the faults, which are sorted by what goes wrong.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from hypothesis.strategies import SearchStrategy

import erythroxy_tx as tx
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.testing import Proof
from erythroxy_tx.testing.proof import DEFAULT_WAYS
from erythroxy_tx.testing.proof import Claim
from erythroxy_tx.testing.relocation import Port

Fn = Callable[..., Any]


class Planted(Transform):
    """A transform that runs `how(fn, *args)` in place of `fn(*args)`, and promises that it is the same."""

    how: Fn = eqx.field(static=True, kw_only=True)
    promise: Any = eqx.field(static=True, kw_only=True)

    name, usage, compiles, traceable = "planted", "planted(how)(fn)", True, True

    def _runner(self) -> Fn:
        return self.program

    def _traced(self, *args: Any) -> Any:
        return self.how(self.fn, *args)

    def _promise(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        return self.promise


class PlantedOnHost(Planted):
    """Likewise outside a trace, where arrays are numpy's."""

    compiles = traceable = False

    def _runner(self) -> Fn:
        return lambda *args: self.how(self.fn, *args)


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to prove: a planted fault, which must be found, or something right, in which nothing must be.

    - `name`: what goes wrong.
    - `fn`: the decorated function, a pair, or a port.
    - `inputs`: a strategy.
    - `original`: of a port, in numpy.
    """

    name: str
    fn: Any
    inputs: SearchStrategy[Any]
    contract: Any = None
    original: Fn | None = None

    def __str__(self) -> str:
        return self.name

    def search(self) -> Callable[..., Proof]:
        """A function of `max_examples` and `seed` that looks for a counterexample, and keeps what it compiles."""
        if self.original is not None:
            port = Port(self.fn, self.original, self.contract or tx.Bitwise())
            return functools.partial(port.search, self.inputs)
        claim = Claim(self.fn, contract=self.contract)
        return functools.partial(claim.search, self.inputs, DEFAULT_WAYS)


def planted(how: Fn, fn: Fn, promise: Any = None, *, on_host: bool = False) -> Planted:
    """Plant a fault around a function; by default with the promise of `tx.chunked`."""
    cls = PlantedOnHost if on_host else Planted
    return cls.around(fn, how=how, promise=tx.AsAccurate(4) if promise is None else promise)  # type: ignore[return-value]


def pieces(x: Any, size: int = 4) -> list[Any]:
    """Chunks of rows, the last one shorter."""
    return [x[i : i + size] for i in range(0, len(x), size)] or [x]


def padded(x: Any, fill: Any = 0, length: int = 40) -> Any:
    """Rows up to a fixed length."""
    return jnp.concatenate([x, jnp.full((length - len(x), *x.shape[1:]), fill, x.dtype)])
