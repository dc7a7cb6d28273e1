"""`prove_no_leak`: search for an input whose padding reaches a result, or a gradient."""

import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from hypothesis.strategies import SearchStrategy

from erythroxy_tx.core.compare import compare
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.padded import Padded
from erythroxy_tx.core.signature import name_of
from erythroxy_tx.core.stack import stack
from erythroxy_tx.program.ragged import Limits
from erythroxy_tx.testing.attempt import Attempt
from erythroxy_tx.testing.attempt import Findings
from erythroxy_tx.testing.judge import Judge
from erythroxy_tx.testing.proof import Proof
from erythroxy_tx.testing.proof import check_arguments
from erythroxy_tx.testing.reproduce import script
from erythroxy_tx.testing.ways import is_smooth
from erythroxy_tx.transforms.pad_static import PadStatic

FILLINGS = (3.0, -0.5, 1e7, -1e30, float("nan"), float("inf"), -float("inf"))
_MORE = 5  # places more, for the second limit


def prove_no_leak(
    fn: Callable[..., Any], inputs: SearchStrategy[Any], *, max_examples: int | None = None, seed: int | None = None
) -> Proof:
    """Search for an input whose padding reaches a result or a gradient of a `pad_static` function, and shrink it.

    For every drawn input, with the padding filled by numbers, by NaN and by infinity, the results and the gradients are
    the same to the bit; the gradients of rows are zero past the end; and the results are those of the function without
    padding, under its contract, with the limit that it has and with a larger one.

    **Arguments:**

    - `fn`: a function decorated with `pad_static`; of a stack, the part from `pad_static` on.
    - `inputs`: a Hypothesis strategy. A tuple that it draws is the positional arguments, anything else the single one.
    - `max_examples`, `seed`: as of `prove`.

    **Returns:** a `Proof`, which prints what was tried.

    **Raises:** `IdentityError` with the smallest counterexample that was found, as code that reproduces it;
    `ContractError` where nothing could have failed; `TypeError` for a function without `pad_static`.

    >>> import jax.numpy as jnp, erythroxy_tx as tx
    >>> from erythroxy_tx.testing import lengths, prove_no_leak, rows
    >>> @tx.pad_static(8, mask="there")
    ... def mean(x, there):
    ...     return jnp.mean(x, axis=0, where=there[:, None])
    >>> print(prove_no_leak(mean, rows(lengths(8, min_length=1), 2), max_examples=5))
    no counterexample to tx.pad_static(8, in_axes=0, mask=['there'])(mean):
      padding  5 inputs, values and gradients
    """
    check_arguments("prove_no_leak", inputs, None, max_examples, seed)
    found = next((each for each in stack(fn) if isinstance(each, PadStatic)), None)
    if found is None:
        raise TypeError(
            f"prove_no_leak got {name_of(fn)}, which pads nothing. Expected a function decorated with tx.pad_static. "
            "Fix: tx.pad_static(max_len)(f)."
        )
    leaks, subject = _Leaks(found), f"{found!r}"
    attempt = Attempt(
        f"prove_no_leak({subject})",
        leaks.findings,
        f"padding reaches a result of {subject}",
        lambda args: script({"f": fn}, args, "tx.testing.prove_no_leak(f, st.just(args))"),
    )
    return Proof(subject, (attempt.run("padding", inputs, max_examples, seed),))


class _Leaks:
    """One function, with all that is compiled to look at it."""

    def __init__(self, fn: PadStatic):
        more = tuple((*steps[:-1], steps[-1] + _MORE) for steps in fn.limits.steps)
        wider = fn.around(fn.fn, **(fn._parameters() | {"limits": Limits(fn.limits.names, more)}))
        self.fn, self.kept = fn, fn.around(fn.fn, **(fn._parameters() | {"keep_padded": True}))
        self.judges = [Judge(fn.unpadded, each) for each in (fn, wider)]
        self._gradients: dict[Any, Any] = {}

    def findings(self, args: tuple) -> Findings:
        faults, reports = [], []
        for judge, limit in zip(self.judges, ("", ", with a larger limit"), strict=True):
            found = judge.findings("jit", args, gradients=False)
            faults += [f"{fault}{limit}" for fault in found.faults]
            reports += found.reports
        plain = self.fn.pad(*args)
        expected = self.fn(*plain), self.gradients(plain)
        for fill in FILLINGS:
            padded = self.fn.pad(*args, fill=fill)
            found_now = self.fn(*padded), self.gradients(padded)
            for what, one, two in zip(("the result", "the gradient"), expected, found_now, strict=True):
                outcome = compare(one, two, Bitwise())
                reports += [(f"{what}{leaf.path}, padded with {fill}", leaf) for leaf in outcome.leaves]
                faults += [
                    f"{what}{leaf.path}, padded with {fill}: {'; '.join(leaf.faults)}"
                    for leaf in outcome.leaves
                    if leaf.faults
                ]
            faults += list(_past_the_end(padded, found_now[1]))
        return Findings(faults, reports)

    def gradients(self, padded: tuple) -> dict[str, Any]:
        """The gradient of a weighted sum of the results, with respect to every float, places past the end included."""
        leaves, treedef = jtu.tree_flatten(padded)
        smooth = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype") and is_smooth(leaf)]
        key = treedef, tuple((leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else leaf for leaf in leaves)
        if key not in self._gradients:
            self._gradients[key] = jax.jit(jax.grad(functools.partial(self._weighed, treedef, smooth)))
        given = [leaves[i] for i in smooth]
        if not any(is_smooth(x) for x in jtu.tree_leaves(jax.eval_shape(self.kept, *padded))) or not given:
            return {}
        found = self._gradients[key](given, leaves)
        return {str(i): x for i, x in zip(smooth, found, strict=True)}

    def _weighed(self, treedef: Any, smooth: list[int], some: list[Any], leaves: list[Any]) -> Any:
        given = list(leaves)
        for i, x in zip(smooth, some, strict=True):
            given[i] = x
        total: Any = 0.0
        for x in jtu.tree_leaves(self.kept(*treedef.unflatten(given)), is_leaf=lambda x: isinstance(x, Padded)):
            data, there = (x.data, x.everywhere) if isinstance(x, Padded) else (jnp.asarray(x), True)
            if jnp.issubdtype(data.dtype, jnp.inexact):
                weights = np.cos(np.arange(data.size)).reshape(data.shape)
                total += jnp.real((jnp.where(there, data, 0) * weights).sum()).astype(jnp.float32)
        return total


def _past_the_end(padded: tuple, gradients: dict[str, Any]) -> Iterator[str]:
    """The gradients of places past the end that are not zero."""
    count = 0
    for x in jtu.tree_leaves(padded, is_leaf=lambda x: isinstance(x, Padded)):
        found = gradients.get(str(count))
        if isinstance(x, Padded) and found is not None and np.where(x.everywhere, 0, found).any():
            yield f"the gradient of {count} is not zero past the end"
        count += len(jtu.tree_leaves(x))
