"""Strategies for the arguments of a function: arrays, rows, lengths, indices and pytrees, with the values that
break ports. Built on `hypothesis.extra.numpy`. Not here: which values those are (`values.py`).

There are few lengths and shapes to draw, for each new one is compiled.
"""

import math
from collections import namedtuple
from collections.abc import Iterable
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

from erythroxy_tx.testing.registration import register_arrays
from erythroxy_tx.testing.values import Bounds
from erythroxy_tx.testing.values import palettes

register_arrays(jax)

_DTYPES = [
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
]
_EACH = 150  # elements; a larger array would take too many draws
_SHAPES = [(3,), (1,), (2, 3), (7,), (5, 1), (0,), (2, 0), ()]

Pair = namedtuple("Pair", ["first", "second"])  # noqa: PYI024  # a pytree with names, of anything


def arrays(
    dtype: Any = "float32",
    shape: Any = None,
    *,
    min_value: float | None = None,
    max_value: float | None = None,
    allow_nan: bool | None = None,
    allow_infinity: bool | None = None,
    allow_subnormal: bool = False,
    extremes: bool = True,
) -> SearchStrategy[np.ndarray]:
    """Arrays whose values tie, repeat, add up exactly, or lie at the edges of their dtype.

    An array of floats is made of one of these: quarters from -2 to 2 (ties, zeros, exact sums); magnitudes up to 1000;
    negative quarters; quarters around 1000 (whose squares cancel); 0, 1, -0, infinities and NaN; or the first two with
    the edges of the dtype: its smallest and largest normal number, one whose square overflows, and the neighbours of 1.
    Integers are small, negative, up to 1000, or near an overflow.

    **Arguments:**

    - `dtype`: a dtype (also `jax.numpy.bfloat16`), or a strategy of them.
    - `shape`: an int, a tuple of ints, or a strategy of either; by default one of eight small ones, empty ones
        among them.
    - `min_value`, `max_value`: bounds, which the dtype must be able to hold.
    - `allow_nan`, `allow_infinity`: by default wherever there are no bounds.
    - `allow_subnormal`: off by default: XLA flushes subnormals in some kernels and not in others.
    - `extremes`: whether the edges of the dtype are drawn.

    **Returns:** a strategy of numpy arrays.

    **Raises:** `hypothesis.errors.InvalidArgument` for bounds that are none, or that the dtype cannot hold.

    >>> from erythroxy_tx.testing import arrays
    >>> arrays("int8", (2, 3), min_value=0).validate()
    """
    if isinstance(dtype, SearchStrategy):
        return dtype.flatmap(
            lambda kind: arrays(
                kind,
                shape,
                min_value=min_value,
                max_value=max_value,
                allow_nan=allow_nan,
                allow_infinity=allow_infinity,
                allow_subnormal=allow_subnormal,
                extremes=extremes,
            )
        )
    bounds = Bounds("arrays", _dtype("arrays", dtype), min_value, max_value, allow_nan, allow_infinity)
    drawn_shape = st.sampled_from(_SHAPES) if shape is None else _shape("arrays", "shape", shape)
    wide = np.float32 if bounds.dtype == jnp.bfloat16 else bounds.dtype  # which Hypothesis does not know
    found = drawn_shape.flatmap(
        lambda s: _filled(wide, s, palettes(bounds, subnormal=allow_subnormal, extremes=extremes))
    )
    return found.map(lambda x: x.astype(bounds.dtype)) if wide != bounds.dtype else found


def _filled(dtype: Any, shape: Any, elements: list[SearchStrategy[Any]]) -> SearchStrategy[np.ndarray]:
    """Arrays of one kind of element, of which many are equal, or each is drawn by itself."""
    found = [hnp.arrays(dtype, shape, elements=one) for one in elements]
    if math.prod(shape if isinstance(shape, tuple) else (shape,)) <= _EACH:
        found += [hnp.arrays(dtype, shape, elements=one, fill=st.nothing()) for one in elements]
    return st.one_of(found)


def rows(
    n: int | SearchStrategy[int] | None = None, features: Any = 4, dtype: Any = "float32", **options: Any
) -> SearchStrategy[np.ndarray]:
    """Arrays of `n` rows, some of which are equal.

    **Arguments:**

    - `n`: the number of rows, or a strategy of it; by default `lengths()`. For several arguments with equally many
        rows share it: `n = st.shared(lengths())`.
    - `features`: the shape of one row, an int or a tuple; `()` for numbers.
    - `dtype`, `options`: as in `arrays`.

    **Returns:** a strategy of arrays of shape `(n, *features)`.

    **Raises:** `hypothesis.errors.InvalidArgument` as `arrays`.

    >>> import hypothesis.strategies as st
    >>> from erythroxy_tx.testing import lengths, rows
    >>> n = st.shared(lengths())
    >>> st.tuples(rows(n, 4), rows(n, (), "int32")).validate()
    """
    counts = lengths() if n is None else _count("rows", "n", n)
    of_row = _shape("rows", "features", features)
    shapes = st.builds(lambda count, shape: (count, *(shape if isinstance(shape, tuple) else (shape,))), counts, of_row)
    plain = arrays(dtype, shapes, **options)
    return st.one_of(plain, st.builds(_repeated, plain, st.integers(0, 2**16)))


def _repeated(x: np.ndarray, seed: int) -> np.ndarray:
    """Some of the rows, some of them twice."""
    return x[np.random.default_rng(seed).integers(0, max(1, len(x)), len(x))]


def lengths(max_length: int = 33, *, min_length: int = 0, around: Iterable[int] = ()) -> SearchStrategy[int]:
    """Lengths at which things go wrong: none, one, primes, and powers of two with their neighbours.

    **Arguments:**

    - `max_length`, `min_length`: the longest and the shortest.
    - `around`: lengths such as that of a chunk: their multiples up to three, and the neighbours of those, are drawn
        too.

    **Returns:** a strategy of ints, at most about thirty different ones: each length compiles a program.

    **Raises:** `hypothesis.errors.InvalidArgument` for bounds that are none.

    >>> from erythroxy_tx.testing import lengths
    >>> lengths(100, around=[10]).validate()
    """
    if not isinstance(around, Iterable) or isinstance(around, str):
        raise InvalidArgument(f"lengths got around={around!r}. Expected several ints >= 0, as in around=[size].")
    around = list(around)
    for name, value in (("max_length", max_length), ("min_length", min_length), *(("around", k) for k in around)):
        _count("lengths", name, value)
    if min_length > max_length:
        raise InvalidArgument(f"lengths got min_length={min_length} and max_length={max_length}. Expected min <= max.")
    powers = [2**k for k in range(1, max_length.bit_length())]
    marks = [*powers, *(times * k for k in around for times in (1, 2, 3))]
    primes = [k for k in (5, 13, _largest_prime(max_length)) if k]
    pool = {0, 1, 2, 3, *primes, max_length, min_length, *(mark + d for mark in marks for d in (-1, 0, 1))}
    found = sorted((k for k in pool if min_length <= k <= max_length), key=lambda k: (k == 0, k))
    return st.sampled_from([*found, *(k for k in (1, 0, 0, 0) if k in found)])  # nothing breaks more than nothing


def indices(
    n: int | SearchStrategy[int],
    shape: Any = None,
    *,
    dtype: Any = "int32",
    allow_negative: bool = False,
    out_of_range: bool = False,
) -> SearchStrategy[np.ndarray]:
    """Indices into `n` things, often the same one again.

    **Arguments:**

    - `n`: how many things there are, or a strategy of it.
    - `shape`: as in `arrays`.
    - `dtype`: of integers.
    - `allow_negative`: whether indices from the end are drawn.
    - `out_of_range`: whether indices beyond both ends are drawn, which numpy refuses and JAX clips or drops.

    **Returns:** a strategy of integer arrays.

    **Raises:** `hypothesis.errors.InvalidArgument` for a dtype that is none of integers.

    >>> from erythroxy_tx.testing import indices
    >>> indices(4, 3).validate()
    """
    if isinstance(n, SearchStrategy):
        return n.flatmap(
            lambda k: indices(k, shape, dtype=dtype, allow_negative=allow_negative, out_of_range=out_of_range)
        )
    _count("indices", "n", n)
    kind = _dtype("indices", dtype)
    if kind.kind not in "iu":
        raise InvalidArgument(f"indices got dtype={kind}. Expected integers.")
    limits = np.iinfo(kind)
    inside = [0, n - 1, *([-1, -n] if allow_negative else [])] if n else []
    outside = [n, n + 1, -n - 1, limits.max, limits.min] if out_of_range else []
    fit = [k for k in (*inside, *outside) if limits.min <= k <= limits.max]
    drawn_shape = _shape("indices", "shape", (3,) if shape is None else shape)
    if not fit:  # nothing can be picked from nothing
        return drawn_shape.map(lambda s: np.zeros((0,) if isinstance(s, int) else (0, *s[1:]), kind))
    few = st.integers(0, max(0, min(n, 3) - 1)) if n else st.sampled_from(fit)
    low = max(-n, limits.min) if allow_negative else 0
    choices = [few, st.integers(low, max(low, min(n - 1, limits.max)))] if n else [few]
    return drawn_shape.flatmap(lambda s: _filled(kind, s, [*choices, st.one_of(*choices, st.sampled_from(fit))]))


def pytrees(leaves: SearchStrategy[Any], *, max_leaves: int = 4) -> SearchStrategy[Any]:
    """Nested tuples, lists, dicts and named tuples of leaves, with empty containers and None.

    **Arguments:**

    - `leaves`: a strategy of leaves.
    - `max_leaves`: about how many there are at most.

    **Returns:** a strategy of pytrees, never a bare leaf.

    **Raises:** `hypothesis.errors.InvalidArgument` if `leaves` is no strategy.

    >>> from erythroxy_tx.testing import arrays, pytrees
    >>> pytrees(arrays()).validate()
    """
    if not isinstance(leaves, SearchStrategy):
        raise InvalidArgument(f"pytrees got leaves={leaves!r}. Expected a strategy, as in pytrees(arrays()).")
    _count("pytrees", "max_leaves", max_leaves)
    within = st.recursive(leaves | st.none(), _containers, max_leaves=max(1, max_leaves))
    return _containers(within)


def _containers(parts: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.one_of(
        st.lists(parts, max_size=2).map(tuple),
        st.lists(parts, max_size=2),
        st.dictionaries(st.sampled_from(["a", "b"]), parts, max_size=2),
        st.builds(Pair, parts, parts),
    )


def _dtype(caller: str, dtype: Any) -> np.dtype:
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise InvalidArgument(f"{caller} got dtype={dtype!r}. Expected a dtype, as in 'float32'.") from error
    if found.name not in _DTYPES:
        raise InvalidArgument(f"{caller} got dtype={dtype!r}. Expected one of {', '.join(_DTYPES)}.")
    return found


def _shape(caller: str, name: str, shape: Any) -> SearchStrategy[Any]:
    if isinstance(shape, SearchStrategy):
        return shape
    sides = shape if isinstance(shape, tuple) else (shape,)
    if not all(isinstance(k, int) and not isinstance(k, bool) and k >= 0 for k in sides):
        raise InvalidArgument(f"{caller} got {name}={shape!r}. Expected an int >= 0, a tuple of them, or a strategy.")
    return st.just(shape)


def _count(caller: str, name: str, value: Any) -> SearchStrategy[int]:
    if isinstance(value, SearchStrategy):
        return value
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidArgument(f"{caller} got {name}={value!r}. Expected an int >= 0.")
    return st.just(value)


def _largest_prime(limit: int) -> int | None:
    """The largest prime up to a limit."""
    return next((k for k in range(limit, 1, -1) if all(k % d for d in range(2, int(k**0.5) + 1))), None)
