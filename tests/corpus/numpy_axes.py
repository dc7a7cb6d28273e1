"""Functions of `jax.numpy` along an axis: reductions, scans, sorts, order statistics, histograms.

Not here: movement along an axis (`numpy_shapes.py`) and products (`numpy_algebra.py`).
"""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp

from .draws import ANGLE
from .draws import ASCENDING
from .draws import AT_LEAST_ONE
from .draws import BOOL
from .draws import COUNT
from .draws import INTEGER
from .draws import LABEL
from .draws import NANS
from .draws import NORMAL
from .draws import POSITIVE
from .draws import SMALL
from .draws import TIED
from .draws import UNIT
from .draws import Draw
from .entry import Entry
from .entry import Family
from .entry import calling
from .entry import named

_NUMPY = Family("numpy", "jnp.")

_EVERY_AXIS: dict[Draw, str] = {
    NORMAL: """
        amax amin argmax argmin average max mean median min minmax ptp size std sum var
        cumsum argsort sort""",
    UNIT: "cumprod prod",
    TIED: "count_nonzero",
    BOOL: "all any",
    NANS: """
        nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd nansum nanvar""",
}
_SCANS = ("cumulative_sum", "cumulative_prod")
_SPREADS = ("std", "var")
_OF_INTEGERS = ("sum", "max", "min", "argmax", "mean", "cumsum", "prod", "sort")


def _reductions() -> Iterator[Entry]:
    call, along = _NUMPY.call, _NUMPY.along
    for draw, names in _EVERY_AXIS.items():
        for name, _ in named(jnp, names):
            yield from along(jnp, name, draw)
    for name in _SCANS:
        yield from along(jnp, name, UNIT, axes=(0, 1))
        yield from along(jnp, name, UNIT, axes=(0,), include_initial=True)
    for name in _SPREADS:
        yield from along(jnp, name, NORMAL, axes=(0, 1), ddof=1)
        yield call(jnp, name, NORMAL(), note="numbers")
    for name in _OF_INTEGERS:
        yield call(jnp, name, AT_LEAST_ONE if name == "prod" else INTEGER, note="integers", axis=0)
    for name in ("sum", "max", "mean"):
        yield call(jnp, name, NORMAL, axis=0, keepdims=True)
        yield call(jnp, name, NORMAL(), note="numbers")
        yield call(jnp, name, NORMAL(3, 4), note="three axes", axis=(0, 2))
        yield call(jnp, name, NORMAL.along(1), note="rows along 1", axis=1)
    for name in ("sum", "mean", "std", "var", "prod", "all", "any", "max", "min"):
        fixed = {"initial": 0.5} if name in {"max", "min"} else {}
        fn = partial(getattr(jnp, name), axis=0, **fixed)
        draw = BOOL if name in {"all", "any"} else UNIT
        masked = lambda x, m, f=fn: f(x, where=m.at[0].set(True))  # noqa: E731
        yield _NUMPY.entry(f"{name} masked rows", masked, draw, BOOL)
    yield _NUMPY.entry("sum from an initial value", lambda x: jnp.sum(x, axis=0, initial=10.0), NORMAL)
    yield _NUMPY.entry("std about a shared mean", lambda x, m: jnp.std(x, axis=0, mean=m[None]), NORMAL, UNIT.shared)
    for name in ("argmax", "argmin", "argsort", "sort", "max", "unique_values"):
        fixed = {"size": 4, "fill_value": 0} if name == "unique_values" else {"axis": 0}
        yield call(jnp, name, TIED, note="tied", **fixed)
    yield call(jnp, "argmax", NANS, note="with NaN", axis=0)
    yield call(jnp, "max", NANS, note="with NaN", axis=0)
    yield call(jnp, "sort", NANS, note="with NaN", axis=0)


def _order_statistics() -> Iterator[Entry]:
    call, along, entry = _NUMPY.call, _NUMPY.along, _NUMPY.entry
    for name, q in (("percentile", 30.0), ("quantile", 0.3), ("nanpercentile", 30.0), ("nanquantile", 0.3)):
        draw = NANS if name.startswith("nan") else NORMAL
        yield from along(jnp, name, draw, q=q)
    for method in ("lower", "higher", "nearest", "midpoint"):
        yield call(jnp, "quantile", NORMAL, q=0.3, axis=0, method=method)
    yield entry("quantile two levels", lambda x: jnp.quantile(x, jnp.array([0.25, 0.75]), axis=0), NORMAL)
    yield entry("quantile of numbers", lambda x: jnp.quantile(x, 0.9), NORMAL())
    for name in ("partition", "argpartition"):
        yield from along(jnp, name, NORMAL, axes=(0, 1), at_least=3, kth=2)
    yield entry("partition first of rows", lambda x: jnp.partition(x, 2, axis=0)[:3], NORMAL, at_least=3)
    yield call(jnp, "sort", NORMAL, axis=0, descending=True)
    yield call(jnp, "sort", NORMAL(), note="numbers")
    yield call(jnp, "argsort", NORMAL(), note="numbers")
    yield call(jnp, "sort_complex", NORMAL())
    yield entry("lexsort of rows", lambda a, b: jnp.lexsort((a, b)), COUNT(), SMALL())
    yield entry("lexsort of columns", lambda a, b: jnp.lexsort((a, b), axis=-1), COUNT, SMALL)
    yield entry("sort last rows", lambda x: jnp.sort(x, axis=0)[-2:], NORMAL)
    yield entry("argsort twice", lambda x: jnp.argsort(jnp.argsort(x)), NORMAL())
    if hasattr(jnp, "top_k"):
        yield entry("top_k axis=0", lambda x: jnp.top_k(x, 2, axis=0), NORMAL, at_least=2)
        yield entry("top_k axis=1", lambda x: jnp.top_k(x, 2, axis=1), NORMAL)
    yield entry("lax.top_k of numbers", lambda x: jax.lax.top_k(x, 2), NORMAL(), at_least=2)
    yield entry("lax.top_k axis=1", lambda x: jax.lax.top_k(x, 2), NORMAL)
    for name, scan in named(jax.lax, "cumsum cumprod cummax cummin cumlogsumexp"):
        for axis, reverse in ((0, False), (0, True), (1, False)):
            label = f"lax.{name} axis={axis} reverse={reverse}"
            yield entry(label, lambda x, scan=scan, axis=axis, reverse=reverse: scan(x, axis, reverse), NORMAL)


def _neighbours() -> Iterator[Entry]:
    call, along, entry = _NUMPY.call, _NUMPY.along, _NUMPY.entry
    yield from along(jnp, "diff", NORMAL, axes=(0, 1))
    yield call(jnp, "diff", NORMAL, n=2, axis=0)
    yield entry("diff with a first row", lambda x: jnp.diff(x, axis=0, prepend=0.0), NORMAL)
    yield entry("ediff1d", jnp.ediff1d, NORMAL())
    yield entry("ediff1d of a table", jnp.ediff1d, NORMAL)
    yield from along(jnp, "gradient", NORMAL, at_least=2)
    yield from along(jnp, "trapezoid", NORMAL, axes=(0, 1))
    yield entry("trapezoid over rows of x", jnp.trapezoid, NORMAL(), ASCENDING())
    yield from along(jnp, "unwrap", ANGLE, axes=(0, 1))


def _counts() -> Iterator[Entry]:
    entry = _NUMPY.entry
    edges = (-2.0, -0.5, 0.0, 0.7, 2.0)
    yield entry("bincount", lambda x: jnp.bincount(x, length=5), LABEL)
    yield entry("bincount weighted", lambda x, w: jnp.bincount(x, weights=w, length=5), LABEL, NORMAL())
    yield entry("digitize", lambda x: jnp.digitize(x, jnp.array(edges)), NORMAL)
    yield entry("digitize right", lambda x: jnp.digitize(x, jnp.array(edges), right=True), TIED)
    yield entry("histogram", lambda x: jnp.histogram(x, bins=jnp.array(edges)), NORMAL)
    yield entry("histogram by its own range", lambda x: jnp.histogram(x, bins=4), NORMAL)
    yield entry("histogram weighted", lambda x, w: jnp.histogram(x, 4, (-3.0, 3.0), weights=w)[0], NORMAL(), POSITIVE())
    yield entry("histogram density", lambda x: jnp.histogram(x, 4, (-3.0, 3.0), density=True)[0], NORMAL())
    yield entry("histogram2d", lambda x, y: jnp.histogram2d(x, y, 3, ((-3, 3), (-3, 3))), NORMAL(), NORMAL())
    yield entry("histogramdd", lambda x: jnp.histogramdd(x, 3, ((-3, 3), (-3, 3)))[0], NORMAL(2))
    yield entry("histogram_bin_edges", lambda x: jnp.histogram_bin_edges(x, bins=4), NORMAL)
    yield entry("searchsorted in shared", jnp.searchsorted, ASCENDING(6).shared, POSITIVE)
    yield entry("searchsorted in rows", jnp.searchsorted, ASCENDING(), POSITIVE(6).shared)
    yield entry("searchsorted right", lambda a, v: jnp.searchsorted(a, v, side="right"), ASCENDING(), POSITIVE())
    for method in ("scan_unrolled", "sort", "compare_all"):
        yield entry(
            f"searchsorted method={method}", calling(jnp.searchsorted, method=method), ASCENDING(), POSITIVE(6).shared
        )
    yield entry("interp in rows", jnp.interp, POSITIVE(6).shared, ASCENDING(), NORMAL())
    yield entry("nonzero", lambda x: jnp.nonzero(x, size=3), SMALL)
    yield entry("nonzero of numbers", lambda x: jnp.nonzero(x > 0, size=3, fill_value=-1), NORMAL())
    yield entry("flatnonzero", lambda x: jnp.flatnonzero(x > 0, size=3, fill_value=-1), NORMAL)
    yield entry("argwhere", lambda x: jnp.argwhere(x > 0, size=3, fill_value=-1), NORMAL)
    yield entry("compress", lambda m, x: jnp.compress(m, x, axis=0, size=2), BOOL(), NORMAL, at_least=2)
    yield entry(
        "compress columns", lambda x: jnp.compress(jnp.array([True, False, True]), x, axis=1, size=2), NORMAL(3)
    )
    yield entry("extract", lambda m, x: jnp.extract(m, x, size=3), BOOL, NORMAL)
    for name, unique in named(jnp, "unique_all unique_counts unique_inverse unique_values"):
        yield entry(f"{name} size=4", lambda x, unique=unique: unique(x, size=4, fill_value=-1), SMALL())
    yield entry("unique", lambda x: jnp.unique(x, size=4, fill_value=9), SMALL)
    yield entry("unique rows", lambda x: jnp.unique(x, size=4, axis=0, fill_value=9), SMALL(2))
    for name, of_two in named(jnp, "intersect1d setdiff1d setxor1d union1d"):
        yield entry(f"{name} with shared", lambda a, b, f=of_two: f(a, b, size=4, fill_value=9), LABEL, SMALL(4).shared)


ENTRIES = [*_reductions(), *_order_statistics(), *_neighbours(), *_counts()]
