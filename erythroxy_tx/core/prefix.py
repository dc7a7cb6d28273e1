"""A pytree prefix that was given as a parameter (`in_axes=`, `out=`), kept so that it can be a static field.
Not here: what its leaves mean.
"""

import dataclasses
from typing import Any

import jax
import jax.tree_util as jtu


def _is_none(value: Any) -> bool:
    return value is None


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A frozen pytree of hashable leaves; `None` is a leaf."""

    leaves: tuple[Any, ...]
    treedef: Any

    @classmethod
    def of(cls, tree: Any) -> "Prefix":
        """Freeze a tree; a list at the top serves as a tuple."""
        leaves, treedef = jtu.tree_flatten(tuple(tree) if isinstance(tree, list) else tree, is_leaf=_is_none)
        return cls(tuple(leaves), treedef)

    @property
    def tree(self) -> Any:
        """The tree as it was given."""
        return jtu.tree_unflatten(self.treedef, self.leaves)

    def spread(self, full: Any, label: str, name: str, what: str) -> list[Any]:
        """One entry for each leaf of `full`.

        **Raises:** `ValueError` naming the parameter if this is no prefix of `full`.
        """
        try:
            entries = jtu.tree_leaves(jax.tree.broadcast(self.tree, full, is_leaf=_is_none), is_leaf=_is_none)
        except ValueError as error:
            if isinstance(self.tree, tuple) and isinstance(full, tuple) and len(self.tree) != len(full):
                counts = f"has {len(self.tree)} entries, not the {len(full)} of {what}"
            else:
                counts = f"does not fit {what}: {jtu.tree_structure(full)}"
            raise ValueError(
                f"{label} got {name}={self}, which {counts}. Expected one value for all, or a pytree prefix. Fix: one "
                "entry for each."
            ) from error
        leaves = jtu.tree_leaves(full, is_leaf=_is_none)  # here None is no entry, in `full` it is no leaf
        return [entry for entry, leaf in zip(entries, leaves, strict=True) if leaf is not None]

    def __repr__(self) -> str:
        return repr(self.tree)
