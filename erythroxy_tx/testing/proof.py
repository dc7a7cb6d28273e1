"""`prove`: search for an input on which a decorated function does not compute what the original computes."""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from hypothesis.strategies import SearchStrategy

from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.stack import stack
from erythroxy_tx.core.transform import Transform
from erythroxy_tx.core.transform import unwrapped
from erythroxy_tx.testing.attempt import Attempt
from erythroxy_tx.testing.attempt import WayProof
from erythroxy_tx.testing.judge import Judge
from erythroxy_tx.testing.reproduce import in_code
from erythroxy_tx.testing.reproduce import script
from erythroxy_tx.testing.ways import WAYS


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
    under: Sequence[str] = ("jit", "vmap", "grad", "scan", "method", "remat"),
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
    reference, candidate = _sides(fn)
    check_arguments("prove", inputs, contract, max_examples)
    _check_ways(under)
    judge = Judge(reference, candidate, contract)
    subject = repr(candidate) if isinstance(candidate, Transform) else name_of(candidate)
    found = []
    for way in under:
        if judge.traceable is None and not WAYS[way].direct:
            outer = stack(candidate)[0].name if stack(candidate) else "the candidate"
            found.append(WayProof(way, 0, note=f"nothing to hold: {outer} works outside a trace, around the reference"))
            continue
        attempt = Attempt(
            f"prove({subject}) under {way}",
            functools.partial(judge.findings, way, gradients=grads),
            f"{subject} does not compute what {name_of(reference)} computes, under {way}",
            functools.partial(_again, reference, candidate, way, contract, grads),
        )
        found.append(attempt.run(way, inputs, max_examples, seed))
    return Proof(subject, tuple(found))


def _again(reference: Any, candidate: Any, way: str, contract: Any, grads: bool, args: tuple) -> str:
    options = [f"under=({way!r},)"] + ["grads=False"] * (not grads)
    options += [] if contract is None else [f"contract={in_code(contract)}"]
    if unwrapped(candidate) is reference:
        return script({"f": candidate}, args, f"tx.testing.prove(f, st.just(args), {', '.join(options)})")
    sides = {"reference": reference, "candidate": candidate}
    return script(sides, args, f"tx.testing.prove((reference, candidate), st.just(args), {', '.join(options)})")


def _sides(fn: Any) -> tuple[Any, Any]:
    if isinstance(fn, Transform):
        return unwrapped(fn), fn
    if isinstance(fn, (tuple, list)) and len(fn) == 2 and all(map(callable, fn)):
        return fn[0], fn[1]
    raise TypeError(
        f"prove got {name_of(fn)}, which no transform is around: there is nothing to hold it against. Expected a "
        "decorated function or a pair. Fix: prove((reference, candidate), inputs)."
    )


def check_arguments(caller: str, inputs: Any, contract: Any, max_examples: Any) -> None:
    """Refuse inputs that are no strategy, a contract that is a class, and a search that tries nothing."""
    if not isinstance(inputs, SearchStrategy):
        raise TypeError(
            f"{caller} got inputs={type(inputs).__name__}. Expected a Hypothesis strategy. Fix: tx.testing.rows(...), "
            "or st.just((x, y)) for one input."
        )
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
