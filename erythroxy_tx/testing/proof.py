"""`prove`: search for an input on which a decorated function does not compute what the original computes."""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax.tree_util as jtu
from hypothesis.strategies import SearchStrategy

from erythroxy_tx.core.contract import Contract
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.stack import reference
from erythroxy_tx.core.stack import stack
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.testing.attempt import Attempt
from erythroxy_tx.testing.attempt import WayProof
from erythroxy_tx.testing.judge import Judge
from erythroxy_tx.testing.reproduce import in_code
from erythroxy_tx.testing.reproduce import script
from erythroxy_tx.testing.ways import WAYS

DEFAULT_WAYS = ("jit", "vmap", "grad", "scan", "method", "remat")


@dataclasses.dataclass(frozen=True)
class Proof:
    """That no counterexample was found, and where it was looked for."""

    subject: str
    ways: tuple[WayProof, ...]

    @property
    def examples(self) -> int:
        """The number of inputs in all ways together."""
        return sum(way.examples for way in self.ways)

    def __str__(self) -> str:
        return "\n  ".join([f"no counterexample to {self.subject}:", *map(str, self.ways)])


def prove(
    fn: Callable[..., Any] | tuple[Callable[..., Any], Callable[..., Any]],
    inputs: SearchStrategy[Any],
    *,
    contract: Any = None,
    grads: bool = True,
    under: Sequence[str] = DEFAULT_WAYS,
    max_examples: int | None = None,
    seed: int | None = None,
) -> Proof:
    """Search for an input on which a decorated function breaks its contract, and shrink it.

    For every drawn input `x` and every way of calling `w`: `w(jit(candidate))(x)` is to `w(jit(reference))(x)` as the
    contract says, values and gradients. What the reference refuses, the candidate must refuse.

    **Arguments:**

    - `fn`: a decorated function, which is held to the function inside (`tx.unwrap`), or a pair (reference, candidate).
    - `inputs`: a Hypothesis strategy. A tuple that it draws is the positional arguments, anything else the single one.
    - `contract`: the promise, one for all outputs or a pytree prefix of them; by default what the candidate's stack
        states for each input (`tx.contract`), `Bitwise()` of a plain function. `AsAccurate` is judged by the same
        program in float64.
    - `grads`: whether derivatives are compared as well.
    - `under`: the ways of calling. `"jit"`: as it is, again after its host arrays changed, and inside `jax.jit`.
        `"vmap"` and `"scan"`: over the input and the same with its entries in reverse order. `"grad"`: `jax.vjp` with
        random cotangents. `"method"`: as a method of an object. `"remat"`: inside `jax.checkpoint`. Others are
        `"jvp"`, forward mode; `"eager"`, outside a trace alone; `"module"`, as a method of an `equinox.Module`;
        `"kwargs"`, with all arguments but the first by keyword; and `"pickle"`, unpickled. Of a transform that works on
        the host alone, the part inside it is proved in the ways that need a trace.
    - `max_examples`: inputs in each way; by default as many as the Hypothesis profile says.
    - `seed`: for the random inputs; by default as the Hypothesis profile says.

    **Returns:** a `Proof`, which prints what was tried.

    **Raises:** `IdentityError` with the smallest counterexample that was found, as code that reproduces it;
    `ContractError` where nothing could have failed; what the candidate raises where the reference does not;
    `TypeError` and `ValueError` for bad arguments.

    >>> import jax, erythroxy_tx as tx
    >>> from erythroxy_tx.testing import prove, rows
    >>> @tx.chunked(jax.lax.map, 3, out=("rows", "mean"))
    ... def f(x):
    ...     return x[:, ::-1], x.mean(0)
    >>> print(prove(f, rows(7, 2), under=("jit", "grad"), max_examples=5))
    no counterexample to tx.chunked(driver=map, n=3, in_axes=0, out=('rows', 'mean'), remat=True)(f):
      jit      5 inputs, values
      grad     5 inputs, values and gradients
    """
    check_arguments("prove", inputs, contract, max_examples, seed)
    _check_ways(under)
    return Claim(fn, contract=contract, grads=grads).search(inputs, under, max_examples, seed)


class Claim:
    """That a candidate computes what its reference computes. What it compiles is kept from search to search.

    **Raises:** `TypeError` for a function that there is nothing to hold against.
    """

    def __init__(self, fn: Any, *, contract: Any = None, grads: bool = True):
        self.reference, self.candidate = _sides(fn)
        self.contract, self.grads = contract, grads
        self.judge = Judge(self.reference, self.candidate, contract)
        self.subject = repr(self.candidate) if isinstance(self.candidate, Transform) else name_of(self.candidate)

    def search(
        self, inputs: SearchStrategy[Any], under: Sequence[str], max_examples: int | None, seed: int | None
    ) -> Proof:
        """Look for a counterexample, way after way."""
        return Proof(self.subject, tuple(self._under(way, inputs, max_examples, seed) for way in under))

    def _under(self, way: str, inputs: SearchStrategy[Any], max_examples: int | None, seed: int | None) -> WayProof:
        if self.judge.traceable is None and not WAYS[way].direct:
            outer = stack(self.candidate)[0].name if stack(self.candidate) else "the candidate"
            return WayProof(way, 0, note=f"nothing to hold: {outer} works outside a trace, around the reference")
        attempt = Attempt(
            f"prove({self.subject}) under {way}",
            functools.partial(self.judge.findings, way, gradients=self.grads),
            f"{self.subject} does not compute what {name_of(self.reference)} computes, under {way}",
            functools.partial(self._again, way),
        )
        return attempt.run(way, inputs, max_examples, seed)

    def _again(self, way: str, args: tuple) -> str:
        """A program that proves one input."""
        options = [f"under=({way!r},)"] + ["grads=False"] * (not self.grads)
        options += [] if self.contract is None else [f"contract={in_code(self.contract)}"]
        pair = {"reference": self.reference, "candidate": self.candidate}
        sides = {"f": self.candidate} if reference(self.candidate) == self.reference else pair
        fn = "f" if len(sides) == 1 else f"({', '.join(sides)})"
        return script(sides, args, f"tx.testing.prove({fn}, st.just(args), {', '.join(options)})")


def _sides(fn: Any) -> tuple[Any, Any]:
    if isinstance(fn, Transform):
        return reference(fn), fn
    if isinstance(fn, (tuple, list)) and len(fn) == 2 and all(map(callable, fn)):
        return fn[0], fn[1]
    raise TypeError(
        f"prove got {name_of(fn)}, which no transform is around: there is nothing to hold it against. Expected a "
        "decorated function or a pair. Fix: prove((reference, candidate), inputs)."
    )


def check_arguments(caller: str, inputs: Any, contract: Any, max_examples: Any, seed: Any) -> None:
    """Refuse inputs that are no strategy, a contract that is a class, and a search that tries nothing."""
    if not isinstance(inputs, SearchStrategy):
        raise TypeError(
            f"{caller} got inputs={type(inputs).__name__}. Expected a Hypothesis strategy. Fix: tx.testing.rows(...), "
            "or st.just((x, y)) for one input."
        )
    if seed is not None and type(seed) is not int:
        raise TypeError(f"{caller} got seed={seed!r}. Expected an int, or None for the profile's.")
    stated = [] if contract is None else jtu.tree_leaves(contract, is_leaf=lambda one: isinstance(one, Contract))
    if not isinstance(contract, type) and (wrong := [one for one in stated if not isinstance(one, Contract)]):
        raise TypeError(f"{caller} got contract={wrong[0]!r}. Expected Bitwise(), Close(rtol) or AsAccurate(k).")
    if isinstance(contract, type):
        raise TypeError(f"{caller} got contract={contract.__name__}. Expected an instance: {contract.__name__}(...).")
    if max_examples is not None and (type(max_examples) is not int or max_examples < 1):
        raise ValueError(
            f"{caller} got max_examples={max_examples!r}. Expected an int >= 1, or None for the profile's."
        )


def _check_ways(under: Any) -> None:
    known = ", ".join(map(repr, WAYS))
    if isinstance(under, str) or not under:
        raise ValueError(f"prove got under={under!r}. Expected a tuple of some of {known}.")
    if unknown := [way for way in under if way not in WAYS]:
        raise ValueError(f"prove got {unknown[0]!r} in under=. Expected some of {known}.")
