"""A relocated result against its numpy reference: which changes of dtype are allowed, and how ties are told."""

import collections
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from erythroxy_tx.core.relocation import compare_relocated
from erythroxy_tx.core.relocation import narrowed
from erythroxy_tx.core.relocation import ties


class Named(NamedTuple):
    a: Any
    b: Any


def ok(reference: Any, candidate: Any, rtol: float = 1e-4, atol: float = 0.0) -> bool:
    return compare_relocated(reference, candidate, rtol, atol).ok


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (np.float64([1]), jnp.float32([1])),
        (np.complex128([1j]), jnp.complex64([1j])),
        (np.float32([1]), jnp.float32([1])),
        (np.int32([1]), jnp.int32([1])),
        (np.bool_([True]), jnp.array([True])),
        (1.5, jnp.float32(1.5)),
        (np.zeros((0, 2)), jnp.zeros((0, 2))),
        (np.zeros(1, jnp.bfloat16), jnp.zeros(1, jnp.bfloat16)),
    ],
)
def test_allowed_dtypes(reference: Any, candidate: Any) -> None:
    assert ok(reference, candidate)


@pytest.mark.parametrize(
    ("reference", "candidate", "fault"),
    [
        (np.float32([1]), np.float64([1]), "dtype float32 → float64"),
        (np.float64([1]), jnp.bfloat16([1]), "dtype float64 → bfloat16"),
        (np.float64([1]), jnp.float16([1]), "dtype float64 → float16"),
        (np.float64([1]), jnp.int32([1]), "dtype float64 → int32"),
        (
            np.int64([1, 2]),
            jnp.int32([1, 2]),
            "dtype int64 → int32 (every value fits; cast the reference if that is meant)",
        ),
        (
            np.int64([2**40]),
            jnp.int32([0]),
            "dtype int64 → int32, and the reference has values from 1099511627776 to 1099511627776, outside",
        ),
        (np.uint64([2**64 - 1]), jnp.uint32([0]), "outside 0 to 4294967295"),
        (np.int64([-1]), jnp.uint32([1]), "dtype int64 → uint32, and the reference has values from -1 to -1"),
        (np.bool_([True]), jnp.int32([1]), "dtype bool → int32"),
        (1, jnp.int32(1), "dtype int64 → int32"),
        (np.int64([]), jnp.zeros(0, jnp.int32), "dtype int64 → int32"),
        (np.float64([1e300]), jnp.float32([jnp.inf]), "NaN or infinity in other places"),
        (np.float64([1]), jnp.float32([[1]]), "shape differs: numpy f64[1], relocated f32[1,1]"),
        (np.ma.masked_array([1.0], [True]), jnp.float32([1]), "is masked"),
        (np.array(["a"]), jnp.float32([1]), "Expected an array of numbers"),
    ],
)
def test_refused(reference: Any, candidate: Any, fault: str) -> None:
    found = compare_relocated(reference, candidate, 1e9, 1e9)
    assert not found.ok
    assert fault in str(found)


def test_integers_are_equal_whatever_the_tolerance() -> None:
    assert not ok(np.int32([7]), jnp.int32([8]), rtol=1e9, atol=1e9)


def test_the_tolerance_is_relative_to_the_largest_magnitude_of_the_reference() -> None:
    reference = np.float64([1000, 1])
    assert ok(reference, jnp.float32([1000, 1.09]), 1e-4)
    assert not ok(reference, jnp.float32([1000, 1.11]), 1e-4)
    assert ok(np.float64([0]), jnp.float32([0.5]), 0, 0.5)
    assert not ok(np.float64([0]), jnp.float32([0.51]), 0, 0.5)
    assert ok(np.float64([0.0]), jnp.float32([-0.0]))


def test_nesting_and_order_count_not_the_kind_of_sequence() -> None:
    one, two = np.float64([1]), np.float64([2])
    as_jax = jax.tree.map(jnp.float32, (one, two))
    for reference in ([one, two], (one, two), Named(one, two)):
        for candidate in (list(as_jax), as_jax, Named(*as_jax)):
            assert ok(reference, candidate)
            assert ok({"x": [reference]}, collections.OrderedDict(x=(candidate,)))
    assert ok(np.linalg.eigh(np.eye(2)), jnp.linalg.eigh(jnp.eye(2)))
    assert not ok((one, two), as_jax[::-1])
    assert not ok((one, two), jnp.float32([[1], [2]]))
    assert not ok({"a": one}, {"b": as_jax[0]})
    assert not ok((one, None), as_jax)


def test_narrowed_names_each_output() -> None:
    reference = {"a": np.float64(1), "b": (np.int32(1), np.complex128(1))}
    candidate = {"a": jnp.float32(1), "b": (jnp.int32(1), jnp.complex64(1))}
    assert narrowed(reference, candidate) == [
        "result['a']: float64 → float32",
        "result['b'][1]: complex128 → complex64",
    ]


X = np.float64([[3, 1, 1], [2, 2, 0]])


@pytest.mark.parametrize(
    ("reference", "candidate", "told"),
    [
        (np.array([[1, 2, 0], [2, 0, 1]]), np.array([[2, 1, 0], [2, 1, 0]]), "along axis 1"),
        (np.array([1, 2]), np.array([2, 2]), "along axis 1"),  # an argmin
        (np.array([0, 1, 1]), np.array([0, 1, 1]), None),  # nothing differs
        (np.array([[1, 2, 0], [2, 0, 1]]), np.array([[0, 1, 2], [2, 0, 1]]), None),  # other values
        (np.array([[1, 2, 0], [2, 0, 1]]), np.array([[1, 1, 0], [2, 0, 1]]), None),  # no sort picks one twice
        (np.array([1, 2]), np.array([7, 2]), None),  # no index
        (np.array([1.0, 2.0]), np.array([2.0, 2.0]), None),
    ],
)
def test_ties(reference: np.ndarray, candidate: np.ndarray, told: str | None) -> None:
    found = ties((reference,), (candidate,), [("x", X)])
    assert bool(found) == (told is not None)
    if told is not None:
        assert found[0].startswith("result[0] is equal up to ties: both pick the same values of x")
        assert told in found[0]
        assert "indices differ only where those are equal" in found[0]


def test_ties_of_nan() -> None:
    assert ties(np.array([0, 1]), np.array([1, 0]), [("x", np.float64([np.nan, np.nan]))])
