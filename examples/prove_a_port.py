"""How a port passes its tests and is wrong: a rolling z-score of daily bars in numpy, its port to JAX, the search
for an input that tells them apart, what the bug does to real prices, and the mended port. `python
examples/prove_a_port.py` runs it. Not here: how a port is made to fit in memory (`relocate_ridge.py`).
"""

import arch.data.sp500
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.lib.stride_tricks import sliding_window_view

import erythroxy_tx as tx
from erythroxy_tx.testing import indices
from erythroxy_tx.testing import prove
from erythroxy_tx.testing import prove_relocation
from erythroxy_tx.testing import rows

WINDOW = 20  # days, one month of trading
SERIES = ["Open", "High", "Low", "Close", "Volume"]


# ---------------------------------------------------------------------- the original


def zscore_numpy(bars):
    """How many standard deviations each day is from the mean of the window that it ends; 0 where nothing moved."""
    windows = sliding_window_view(bars.astype(np.float64), WINDOW, axis=0)  # f64[days, series, WINDOW]
    mean, std = windows.mean(-1), windows.std(-1)
    return np.divide(windows[..., -1] - mean, std, out=np.zeros_like(mean), where=std > 0)


# ---------------------------------------------------------------------- a port, as many are


def window_sums(x):
    """Sums over each window from two running sums, so that no window is built."""
    running = jnp.cumsum(jnp.pad(x, ((1, 0), (0, 0))), axis=0)
    return running[WINDOW:] - running[:-WINDOW]


@jax.jit
def zscore_port(bars):
    mean = window_sums(bars) / WINDOW
    std = jnp.sqrt(window_sums(bars**2) / WINDOW - mean**2)
    return jnp.where(std > 0, (bars[WINDOW - 1 :] - mean) / std, 0)


# ---------------------------------------------------------------------- the port, mended


def zscore_on(days, bars):
    """The z-scores of some days. What is squared are distances from the window's last value: small and exact."""
    windows = bars[days[:, None] + jnp.arange(1 - WINDOW, 1)]  # f32[days, WINDOW, series]
    distance = windows - windows[:, -1:]
    variance = distance.var(1)
    flat = variance == 0
    return jnp.where(flat, 0, -distance.mean(1) / jnp.sqrt(jnp.where(flat, 1, variance)))


@jax.jit
def zscore_mended(bars):
    return zscore_on(jnp.arange(WINDOW - 1, len(bars)), bars)


zscore_in_chunks = tx.chunked(lax.map, 3, in_axes=(0, None), out="rows")(zscore_on)  # a third of the windows at once


# ---------------------------------------------------------------------- what they are tried on

NOISE = np.random.default_rng(0).normal(size=(250, len(SERIES))).astype(np.float32)
PRICES = rows(WINDOW + 4, 1, min_value=1, max_value=2000)  # what a share may cost
DAYS = indices(5, 7).map(lambda day: day + WINDOW - 1)


def search(port, max_examples):
    return prove_relocation(port, zscore_numpy, PRICES, contract=tx.Close(1e-4), max_examples=max_examples, seed=0)


def on_real_bars(port):
    """The largest z-score of the port, and what is said of its largest difference from numpy."""
    bars = arch.data.sp500.load()[SERIES]
    expected, found = zscore_numpy(bars.to_numpy()), np.asarray(port(bars.to_numpy(np.float32)))
    apart = np.abs(found - expected)
    day, series = at = np.unravel_index(apart.argmax(), apart.shape)
    when = f"in {SERIES[series]} of {bars.index[day + WINDOW - 1]:%Y-%m-%d}"
    told = f"largest difference {apart[at]:.2g}, {when}: numpy {expected[at]:.6f}, port {found[at]:.6f}"
    return np.abs(found).max(), told


def reading(bars):
    low, high = bars.min(), bars.max()
    return (
        f"a price from {low:g} to {high:g}. Its variance, below {(high - low) ** 2:g}, is taken as the difference of "
        f"two\nnumbers near {low:.0f}² = {low**2:.0f}, where float32 numbers are {np.spacing(low**2):.1g} apart. "
        "What is left is rounding,\nand `std > 0` lets it pass."
    )


def main(max_examples=100):
    apart = np.abs(zscore_port(NOISE) - zscore_numpy(NOISE)).max()
    passes = np.allclose(zscore_port(NOISE), zscore_numpy(NOISE), rtol=1e-4, atol=1e-4)
    print(f"1. The usual check, on 250 days of noise. np.allclose: {passes}; largest difference {apart:.1g}.\n")

    print("2. A search among prices from 1 to 2000:\n")
    try:
        print(search(zscore_port, max_examples))
    except tx.RelocationError as error:
        print(f"{error}\n\nRead it: {reading(*error.counterexample)}\n")

    largest, told = on_real_bars(zscore_port)
    print(f"3. The S&P 500, daily from 1999 to 2018: {told}.")
    limit = (WINDOW - 1) ** 0.5
    print(f"   Its largest is {largest:.1f}; no z-score among {WINDOW} days exceeds √{WINDOW - 1} = {limit:.2f}.\n")

    print(f"4. The mended port on the same: {on_real_bars(zscore_mended)[1]}.\n")
    print(f"5. The same search: {search(zscore_mended, max_examples)}\n")
    print(f"6. In chunks: {prove(zscore_in_chunks, st.tuples(DAYS, PRICES), max_examples=max_examples, seed=0)}")


if __name__ == "__main__":
    from prove_a_port import main  # by its name, so that the code of a counterexample can import the ports

    main()
