"""Pytree prefixes as parameters."""

from typing import Any

import pytest

from erythroxy_tx.core.prefix import Prefix


@pytest.mark.parametrize("tree", [0, None, (0, None), ("rows", ("sum", "max")), {"a": 0, "b": None}, ()])
def test_it_is_the_tree_again(tree: Any) -> None:
    prefix = Prefix.of(tree)
    assert prefix.tree == tree
    assert repr(prefix) == repr(tree)
    assert prefix == Prefix.of(tree)
    assert hash(prefix) == hash(Prefix.of(tree))


def test_a_list_serves_as_a_tuple() -> None:
    assert Prefix.of([0, None]) == Prefix.of((0, None))


def test_other_trees_are_other_prefixes() -> None:
    trees = [0, (0,), (0, 0), None, (None,), {"a": 0}, {"b": 0}, "rows", ("rows",)]
    assert len({Prefix.of(tree) for tree in trees}) == len(trees)


@pytest.mark.parametrize(
    ("tree", "full", "spread"),
    [
        (0, (1, {"a": 2, "b": 3}), [0, 0, 0]),
        ((0, None), (1, {"a": 2, "b": 3}), [0, None, None]),
        ((0, {"a": None, "b": 1}), (1, {"a": (2, 3), "b": 3}), [0, None, None, 1]),
        (None, (1, 2), [None, None]),
        ((), (), []),
        (0, (1, None, 2), [0, 0]),
    ],
)
def test_one_entry_for_each_leaf(tree: Any, full: Any, spread: list[Any]) -> None:
    assert Prefix.of(tree).spread(full, "f", "in_axes", "the arguments") == spread


@pytest.mark.parametrize(
    ("tree", "full"), [((0, 0), (1,)), ((0,), {"a": 1}), ({"a": 0}, {"b": 1}), ((0, (1, 2)), (1, 2))]
)
def test_what_does_not_fit_is_refused_by_name(tree: Any, full: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"f got in_axes=.*(does not fit the arguments: PyTreeDef|has 2 entries, not the 1 of).*Expected.*Fix",
    ) as caught:
        Prefix.of(tree).spread(full, "f", "in_axes", "the arguments")
    assert repr(tree) in str(caught.value)
