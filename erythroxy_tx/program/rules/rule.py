"""What a rule is: how one primitive treats rows. Not here: any primitive.

A rule answers two questions. Which rows of its inputs does a primitive need for the rows of its result that are
wanted (`wants`)? And what is its result on those (`block`)? Everything else, chunks, passes, halos, follows.
"""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from erythroxy_tx import _compat
from erythroxy_tx.errors import RowMixingError
from erythroxy_tx.program.blocks import Range
from erythroxy_tx.program.blocks import Start
from erythroxy_tx.program.blocks import Want
from erythroxy_tx.program.blocks import block_shape
from erythroxy_tx.program.blocks import whole
from erythroxy_tx.program.equations import Equation
from erythroxy_tx.program.equations import Program
from erythroxy_tx.program.folds import Fold

At = Callable[[Start], Any]  # the number that a start is


class Kind(enum.Enum):
    """How an equation that has to do with rows is run."""

    BLOCK = "on any part of its rows"
    FOLD = "over the chunks, to a result without rows"
    CARRY = "from chunk to chunk"
    WHOLE = "on all rows at once"


class Rule:
    """A primitive that gives any part of its result from some part of its inputs."""

    def cheap(self, eqn: Equation) -> bool:  # noqa: ARG002
        """Whether its result takes no work, so that it is computed again rather than stored."""
        return False

    def kind(self, eqn: Equation) -> Kind:  # noqa: ARG002
        """How the equation is run. **Raises:** `RowMixingError` if it cannot be."""
        return Kind.BLOCK

    def request(self, eqn: Equation, out: int, want: Want) -> Any:  # noqa: ARG002
        """What has to be computed for this part of this output; equal for outputs that are computed together."""
        return want

    def given(self, eqn: Equation, request: Any) -> list[Want]:
        """The part of each output that a request gives."""
        return [request] * len(eqn.outs)

    def wants(self, eqn: Equation, request: Any) -> list[Want | None]:
        """The part of each input that a request needs; None where it needs none of it."""
        raise NotImplementedError

    def block(self, eqn: Equation, request: Any, ins: list[Any], at: At) -> list[Any]:  # noqa: ARG002
        """The outputs for a request, from what it wants."""
        return bound(eqn, ins)

    def whole(self, eqn: Equation, ins: list[Any], run: Callable[[Program, list[Any]], list[Any]]) -> list[Any]:  # noqa: ARG002
        """The outputs from whole inputs; `run` runs a program inside."""
        return bound(eqn, ins)

    def fold(self, eqn: Equation) -> "Folding":
        """For `Kind.FOLD`: how it runs over chunks."""
        raise NotImplementedError

    def carry(self, eqn: Equation) -> "Carrying":
        """For `Kind.CARRY`: what it hands from chunk to chunk."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Carrying:
    """What runs from chunk to chunk.

    - `size`, `dim`: how many rows, for the rows at hand and with the unknown. `reverse`: from the last chunk on.
    - `wants`: the part of each input for a range of rows. `start`: the first carry, given the inputs without rows.
    - `step(carry, inputs, rows, own)`: the next carry, and the outputs of a chunk of so many rows, of which `own` tells
        those that count, None that all do. `axes`: where each output has its rows, None for one that has none. `final`:
        those, given the last carry.
    - `join`: the carry after rows that end in one and then rows that end in the other from the first carry.
    """

    size: int
    dim: Any
    reverse: bool
    wants: Callable[[Range], list[Want | None]]
    start: Callable[[list[Any]], Any]
    step: Callable[[Any, list[Any], int, Any], tuple[Any, list[Any]]]
    axes: list[int | None]
    final: Callable[[Any], list[Any]] = lambda carry: []  # noqa: ARG005
    join: Callable[[Any, Any], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Folding:
    """A reduction over rows, one chunk at a time.

    - `size`, `dim`: the length of the axis that is cut, for the rows at hand and with the unknown.
    - `wants`: the part of each input for a range of that axis. `value(inputs, rows, at, own)`: what a chunk gives.
    - `shares`: whether a chunk may have rows that do not count: `own` tells those that do, None that all do.
    - `fold`: how chunks come together. `finish`: the outputs from what was folded.
    - `start`: what it starts from, given the inputs that have no rows; by default the fold's own.
    - `ordered`: whether chunks have to come in order.
    """

    size: int
    dim: Any
    wants: Callable[[Range], list[Want | None]]
    value: Callable[[list[Any], Range, At, Any], Any]
    fold: Fold
    finish: Callable[[Any], list[Any]] = lambda folded: [folded]
    start: Callable[[list[Any]], Any] | None = None
    ordered: bool = False
    shares: bool = False


def only(x: Any, axis: int, own: Any, fill: Any) -> Any:
    """The rows of a chunk that are its own, and a number in place of the others."""
    if own is None:
        return x
    return jnp.where(own.reshape([-1 if i == axis else 1 for i in range(x.ndim)]), x, jnp.asarray(fill, x.dtype))


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Zeros, or random keys."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, dtype))
        return jax.random.wrap_key_data(jnp.zeros(data.shape, data.dtype), impl=_compat.key_impl(dtype))
    return jnp.zeros(shape, dtype)


def bound(eqn: Equation, ins: list[Any], **changed: Any) -> list[Any]:
    """The equation on other values, some of its parameters changed."""
    return _compat.bind(eqn.primitive, ins, eqn.params | changed)


def out_shape(eqn: Equation, want: Want) -> tuple[int, ...]:
    """The shape of a part of the first output."""
    return block_shape(eqn.outs[0].at, want)


def everything_of(eqn: Equation) -> list[Want | None]:
    """All of every input."""
    return [whole(v) for v in eqn.ins]


def without_rows(program: Program) -> bool:
    """Whether nothing in a program has rows."""
    return not any(eqn.rows for eqn in program.equations) and not any(v.rows for v in (*program.ins, *program.outs))


def mixing(eqn: Equation, why: str, fix: str) -> RowMixingError:
    """The refusal of an equation. What is called is put before it by the caller."""
    shapes = ", ".join(map(str, eqn.ins)) + " → " + ", ".join(map(str, eqn.outs))
    return RowMixingError(f"{eqn.name} at {eqn.line}: {shapes}, {why}. Fix: {fix}.")
