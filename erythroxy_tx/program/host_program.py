"""A function of arrays as a compiled program, found again where an equal one was compiled before."""

from collections.abc import Callable
from collections.abc import Hashable
from typing import Any

import jax

from erythroxy_tx import _compat
from erythroxy_tx.core.compiled import ProgramBytes
from erythroxy_tx.core.signature import struct_of
from erythroxy_tx.program.same_program import key_of


class Compiled:
    """A function that runs as a compiled program: that of an equal one, if there was one before.

    **Arguments:** `programs`: those that there are, by key. `donates`: whether its second argument may be written over.
    `typed`: whether where an argument lies is part of its type.
    """

    def __init__(
        self,
        name: str,
        run: Callable[..., Any],
        programs: dict[Hashable, Any],
        *,
        donates: bool = False,
        typed: bool = False,
    ):
        self._name, self._run, self._all, self._donates, self._typed = name, run, programs, donates, typed
        self._jitted: Callable[..., Any] | None = None
        self._shape: Any = None

    def __call__(self, *args: Any) -> Any:
        return self._program(args)(*args)

    def shape(self, *args: Any) -> Any:
        """The types of what it gives."""
        self._program(args)
        return self._shape

    def bytes(self, *args: Any) -> ProgramBytes:
        """What it takes, by XLA's account."""
        program: Any = self._program(args)
        return ProgramBytes.of(program.lower(*args).compile())

    def _program(self, args: tuple) -> Callable[..., Any]:
        if self._jitted is None:
            types = args if self._typed else jax.tree.map(struct_of, args)
            closed, self._shape = jax.make_jaxpr(self._run, return_shape=True)(*types)
            structures = jax.tree.structure(args), jax.tree.structure(self._shape)
            key = self._name, key_of(closed), structures, self._donates
            if key not in self._all:
                self._all[key] = closed, self._jit(closed, structures[1])  # what is told by identity lives with it
            self._jitted = self._all[key][1]
        return self._jitted

    def _jit(self, closed: Any, structure: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            return jax.tree.unflatten(structure, _compat.eval_closed(closed, closed.consts, jax.tree.leaves(args)))

        run.__name__ = self._name
        return jax.jit(run, donate_argnums=1 if self._donates else ())
