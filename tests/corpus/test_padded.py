"""Every function of the corpus through `pad_static`: as without padding under its contract, or refused as
`docs/refused.md` says.

A seeded slice of functions, limits and fillings by default and with `--erythroxy-profile=ci`, another one on each
version of Python; every function and every length with `thorough`.
"""

import random
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx
from erythroxy_tx.testing.judge import Judge

from . import ENTRIES
from . import Entry
from .test_streamed import pairs_of
from .test_streamed import refused
from .test_streamed import same

LENGTHS = (64, 63, 7, 2, 1, 0)
LIMITS = (64, 100)
FILLINGS = (np.nan, 1e30, -37.5, 0.125)
SLICE = {None: 25, "fast": 25, "ci": 100}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "entry" not in metafunc.fixturenames:
        return
    profile = metafunc.config.getoption("--erythroxy-profile", default=None)
    chance = random.Random(5 + len(ENTRIES) + 1000 * sys.version_info.minor)  # other cases on each Python
    cases = [
        (entry, most, fill)
        for entry in ENTRIES
        for most, fill in ([(m, f) for m in LIMITS for f in FILLINGS] if profile == "thorough" else [
            (chance.choice(LIMITS), chance.choice(FILLINGS))
        ])
    ]  # fmt: skip
    if profile in SLICE:
        cases = chance.sample(cases, SLICE[profile])
    lengths = [LENGTHS if profile == "thorough" else (64, *chance.sample(LENGTHS[1:], 2)) for _ in cases]
    metafunc.parametrize(
        ("entry", "most", "fill", "lengths"),
        [
            pytest.param(*case, some, id=f"{case[0].name}, up to {case[1]}, {case[2]}")
            for case, some in zip(cases, lengths, strict=True)
        ],
    )


def test_padded(entry: Entry, most: int, fill: float, lengths: tuple[int, ...]) -> None:
    padded = tx.pad_static(most, in_axes=entry.in_axes)(entry.fn)
    for n in lengths:
        if n >= entry.at_least:
            _check(entry, padded, entry.inputs(n), fill)


def _check(entry: Entry, padded: Any, args: tuple, fill: float) -> None:
    try:
        want = jax.jit(entry.fn)(*args)
    except Exception as error:  # noqa: BLE001  # whatever the function raises for so few rows
        with pytest.raises((type(error), tx.LengthError, tx.RowMixingError)):
            padded(*padded.pad(*args, fill=fill))
        return
    try:
        got = padded(*padded.pad(*args, fill=fill))
    except tx.RowMixingError as error:
        if entry.name not in refused("pad_static"):
            raise AssertionError(f"{entry.name} is refused, and the page does not say so") from error
        return
    if all(_near(a, b) for a, b in pairs_of(want, got)):
        return
    plain = padded(*args)  # what is judged is the program with padding of its own, so the filling must change no bit
    assert all(same(a, b) for a, b in pairs_of(plain, got)), f"{fill} in the padding reaches the result"
    faults = Judge(entry.fn, padded).findings("jit", args, gradients=False).faults
    assert not faults, "\n".join(faults)


def _near(a: Any, b: Any) -> bool:
    if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    a, b = np.asarray(a), np.asarray(b)
    if not jnp.issubdtype(a.dtype, np.inexact):
        return np.array_equal(a, b)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite].astype(np.complex64), b[~finite].astype(np.complex64), equal_nan=True):
        return False
    wide = [x[finite].astype(np.complex128) for x in (a, b)]
    return bool(
        np.abs(wide[0] - wide[1]).max(initial=0) <= 4 * float(jnp.finfo(a.dtype).eps) * np.abs(wide[0]).max(initial=0)
    )


def test_few_are_refused() -> None:
    names = {entry.name for entry in ENTRIES}
    mixing = [name for name, why in refused("pad_static").items() if "cannot be traced" not in why]
    untraced = [name for name, why in refused("pad_static").items() if "cannot be traced" in why]
    assert set(refused("pad_static")) <= names
    lowered = 1 - len(mixing) / (len(names) - len(untraced))
    assert lowered >= 0.95, f"{lowered:.1%} of {len(names) - len(untraced)} functions that trace are run with masks"
