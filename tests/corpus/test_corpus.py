"""The corpus itself: complete, uniquely named, and with inputs as it states them. What is done with it is not here."""

import inspect
from types import ModuleType

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corpus import ENTRIES
from corpus.left_out import LEFT_OUT
from corpus.stats import functions_of

ABOUT = {entry.name.split()[0] for entry in ENTRIES}
NAMESPACES = {
    "jnp.": jnp,
    "jnp.linalg.": jnp.linalg,
    "jnp.fft.": jnp.fft,
    "nn.": jax.nn,
    "special.": jax.scipy.special,
    "eqx.": equinox.nn,
}


def functions(namespace: ModuleType) -> set[str]:
    """Its public functions; of `equinox.nn`, its layers too."""
    skip = () if namespace is equinox.nn else type
    public = {name: value for name, value in vars(namespace).items() if not name.startswith("_")}
    return {name for name, value in public.items() if callable(value) and not isinstance(value, skip)}


def untold(prefix: str, names: set[str]) -> set[str]:
    return {f"{prefix}{name}" for name in names} - ABOUT - set(LEFT_OUT)


@pytest.mark.parametrize("prefix", NAMESPACES)
def test_every_function_is_here_or_left_out_with_a_reason(prefix: str) -> None:
    assert functions(NAMESPACES[prefix])
    assert not untold(prefix, functions(NAMESPACES[prefix]))


def test_every_density_is_here() -> None:
    for name, value in vars(jax.scipy.stats).items():
        if inspect.ismodule(value):
            assert not untold(f"stats.{name}.", set(functions_of(value)))
    assert not untold("stats.", functions(jax.scipy.stats))


def test_every_loss_is_here() -> None:
    optax = pytest.importorskip("optax")
    assert not untold("optax.", functions(optax.losses))


def test_nothing_left_out_is_here() -> None:
    assert not ABOUT & set(LEFT_OUT)


def test_names_are_unique() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


def test_inputs_are_as_stated() -> None:
    for entry in ENTRIES:
        inputs, again = entry.inputs(7), entry.inputs(7)
        axes = entry.in_axes if isinstance(entry.in_axes, tuple) else (entry.in_axes,) * len(inputs)
        for array, same, axis in zip(inputs, again, axes, strict=True):
            assert type(array) is np.ndarray, entry.name
            np.testing.assert_array_equal(array, same)
            assert axis is None or array.shape[axis] == 7, entry.name
