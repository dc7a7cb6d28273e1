"""Functions of `jax.numpy` that work element by element: of one array, of two, of three.

Not here: reductions, scans and sorts (`numpy_axes.py`), movement (`numpy_shapes.py`), algebra (`numpy_algebra.py`).
"""

import jax.numpy as jnp

from .draws import ABOVE_ONE
from .draws import ANGLE
from .draws import AT_LEAST_ONE
from .draws import BOOL
from .draws import COMPLEX
from .draws import COUNT
from .draws import INTEGER
from .draws import NORMAL
from .draws import NOT_FINITE
from .draws import POSITIVE
from .draws import SMALL
from .draws import TIED
from .draws import UNIT
from .draws import Draw
from .entry import Entry
from .entry import Family

_NUMPY = Family("numpy", "jnp.")

_OF_ONE: dict[Draw, str] = {
    NORMAL: """
        abs absolute arcsinh arctan array around asarray asinh atan cbrt ceil copy cos cosh deg2rad degrees empty_like
        exp exp2 expm1 fabs floor frexp i0 isreal iscomplex modf negative ones_like positive rad2deg radians
        reciprocal rint round sign signbit sin sinc sinh spacing square tanh trunc zeros_like""",
    UNIT: "acos arccos arcsin arctanh asin atanh",
    ABOVE_ONE: "acosh arccosh",
    POSITIVE: "log log10 log1p log2 sqrt",
    ANGLE: "tan",
    COMPLEX: "angle conj conjugate imag real",
    NOT_FINITE: "isfinite isinf isnan isneginf isposinf nan_to_num",
    INTEGER: "bitwise_count bitwise_invert bitwise_not invert",
    BOOL: "logical_not",
}

_OF_TWO: dict[tuple[Draw, Draw], str] = {
    (NORMAL, NORMAL): """
        add arctan2 atan2 copysign fmax fmin hypot logaddexp logaddexp2 maximum minimum multiply nextafter subtract""",
    (NORMAL, POSITIVE): "divide divmod floor_divide fmod mod remainder true_divide",
    (POSITIVE, NORMAL): "float_power pow power",
    (TIED, TIED): """
        allclose array_equal array_equiv equal greater greater_equal heaviside isclose less less_equal not_equal""",
    (INTEGER, INTEGER): "bitwise_and bitwise_or bitwise_xor gcd",
    (AT_LEAST_ONE, AT_LEAST_ONE): "lcm",
    (COUNT, SMALL): "bitwise_left_shift bitwise_right_shift left_shift right_shift",
    (NORMAL, SMALL): "ldexp",
    (BOOL, BOOL): "logical_and logical_or logical_xor",
}

_WITH_SHARED = "add arctan2 divide greater maximum multiply power subtract"


def _entries() -> list[Entry]:
    call, entry = _NUMPY.call, _NUMPY.entry
    found = [call(jnp, name, draw) for draw, names in _OF_ONE.items() for name in names.split()]
    found += [call(jnp, name, *pair) for pair, names in _OF_TWO.items() for name in names.split()]
    found += [call(jnp, name, POSITIVE, POSITIVE.shared, note="with a shared row") for name in _WITH_SHARED.split()]
    found += [call(jnp, name, POSITIVE, POSITIVE().shared, note="with a scalar") for name in ("add", "multiply")]
    found += [call(jnp, name, NORMAL(), NORMAL(), note="numbers") for name in ("add", "arctan2", "subtract")]
    found += [call(jnp, name, INTEGER, AT_LEAST_ONE, note="integers") for name in ("divmod", "floor_divide", "mod")]
    found += [call(jnp, name, COMPLEX, note="complex") for name in ("abs", "exp", "log", "sqrt", "square", "isreal")]
    found += [call(jnp, name, INTEGER, note="integers") for name in ("abs", "sign", "sqrt", "square", "negative")]
    return [
        *found,
        entry("add outer of columns", lambda x, y: x[:, :, None] + y[:, None, :], NORMAL, NORMAL),
        entry("astype bfloat16", lambda x: x.astype(jnp.bfloat16), NORMAL),
        entry("astype int32", lambda x: jnp.astype(x, jnp.int32), NORMAL),
        entry("around decimals=1", lambda x: jnp.around(x, 1), NORMAL),
        entry("clip", lambda x: jnp.clip(x, -1.0, 0.5), NORMAL),
        entry("clip by shared rows", jnp.clip, NORMAL, UNIT.shared, ABOVE_ONE.shared),
        entry("choose", lambda i, a, b, c: jnp.choose(i % 3, [a, b, c], mode="clip"), COUNT, NORMAL, NORMAL, NORMAL),
        entry("allclose to itself", lambda x: jnp.allclose(x, x * (1 + 1e-6)), NORMAL),
        entry("array_equal to itself", lambda x: jnp.array_equal(x, x + 0), NORMAL),
        entry("full_like", lambda x: jnp.full_like(x, 3), NORMAL),
        entry("isin", jnp.isin, SMALL, SMALL(2).shared),
        entry("isin of rows", lambda x: jnp.isin(jnp.arange(7), x), SMALL),
        entry(
            "piecewise",
            lambda x: jnp.piecewise(x, [x < -1, x > 1], [lambda v: -v, lambda v: 2 * v, lambda v: v * v]),
            NORMAL,
        ),
        entry("power by an integer", lambda x: jnp.power(x, 3), NORMAL),
        entry("select", lambda x, y: jnp.select([x > 1, y > 0], [x, y], 0.5), NORMAL, NORMAL),
        entry("ufunc where", lambda x: jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), 0.0), NORMAL),
        entry("unravel_index", lambda i: jnp.unravel_index(i, (3, 4)), COUNT()),
        entry("ravel_multi_index", lambda i, j: jnp.ravel_multi_index((i, j), (5, 5), mode="clip"), SMALL(), SMALL()),
        entry("vectorize", jnp.vectorize(jnp.dot, signature="(k),(k)->()"), NORMAL, NORMAL),
        entry("frompyfunc", jnp.frompyfunc(lambda a, b: a * b + 1, 2, 1), NORMAL, NORMAL),
        entry("frompyfunc reduce", lambda x: jnp.frompyfunc(lambda a, b: a + b, 2, 1, identity=0).reduce(x), NORMAL),
        entry("where", jnp.where, BOOL, NORMAL, NORMAL),
        entry("where with a shared row", jnp.where, BOOL, NORMAL, NORMAL.shared),
        entry("where by a mask of rows", lambda m, x: jnp.where(m[:, None], x, -jnp.inf), BOOL(), NORMAL),
        entry("where with size", lambda x: jnp.where(x > 0, size=4, fill_value=-1), NORMAL),
        entry("x ** 2", lambda x: x**2, NORMAL),
        entry("x ** 0.5", lambda x: x**0.5, POSITIVE),
        entry("x // 2 of integers", lambda x: x // 2, INTEGER),
        entry("astype of a comparison", lambda x, y: (x > y).astype(jnp.float32), NORMAL, NORMAL),
        entry("polyval", jnp.polyval, NORMAL(4).shared, NORMAL),
        entry("polyval with rows of coefficients", jnp.polyval, NORMAL(3), UNIT().shared),
        entry("interp", jnp.interp, NORMAL, NORMAL(4).shared, NORMAL(4).shared),
    ]


ENTRIES = _entries()
