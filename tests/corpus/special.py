"""Functions of `jax.scipy.special`."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.scipy import special

from .draws import ABOVE_ONE
from .draws import ANGLE
from .draws import AT_LEAST_ONE
from .draws import COMPLEX
from .draws import COUNT
from .draws import NORMAL
from .draws import POSITIVE
from .draws import PROBABILITY
from .draws import SIMPLEX
from .draws import UNIT
from .draws import Draw
from .entry import Entry
from .entry import Family
from .entry import named

_SPECIAL = Family("special", "special.")

_OF_ONE: dict[Draw, str] = {
    NORMAL: "gammasgn dawsn erf erfc erfcx expit fresnel i0 i0e i1 i1e log_ndtr ndtr sici",
    POSITIVE: "digamma entr exp1 expi gamma gammaln loggamma spence",
    UNIT: "erfinv",
    PROBABILITY: "erfcinv logit ndtri",
    COUNT: "factorial",
    COMPLEX: "wofz",
}
_OF_TWO: dict[tuple[Draw, Draw], str] = {
    (POSITIVE, POSITIVE): "beta betaln gammainc gammaincc kl_div poch rel_entr xlog1py xlogy",
    (POSITIVE, PROBABILITY): "boxcox boxcox1p",
    (AT_LEAST_ONE, COUNT): "comb",
    (AT_LEAST_ONE, POSITIVE): "expn polygamma",
    (NORMAL, NORMAL): "owens_t",
    (ABOVE_ONE, POSITIVE): "zeta",
}


def _entries() -> Iterator[Entry]:
    call, along, entry = _SPECIAL.call, _SPECIAL.along, _SPECIAL.entry
    for draw, names in _OF_ONE.items():
        for name, _ in named(special, names):
            yield call(special, name, draw)
    for pair, names in _OF_TWO.items():
        for name, _ in named(special, names):
            yield call(special, name, *pair)
    for name in ("log_softmax", "logsumexp", "softmax"):
        yield from along(special, name, NORMAL)
    yield entry("kl_div summed", lambda p, q: jnp.sum(special.kl_div(p, q), axis=0), SIMPLEX, SIMPLEX)
    yield entry("xlogy with a shared row", special.xlogy, POSITIVE, POSITIVE.shared)
    yield call(special, "betainc", POSITIVE, POSITIVE, PROBABILITY)
    yield call(special, "hyp1f1", POSITIVE, ABOVE_ONE, PROBABILITY)
    yield call(special, "hyp2f1", PROBABILITY, PROBABILITY, ABOVE_ONE, PROBABILITY)
    yield entry("multigammaln", lambda a: special.multigammaln(a + 2, 2), POSITIVE)
    yield entry("bessel_jn", lambda z: special.bessel_jn(z, v=3, n_iter=20), POSITIVE())
    yield entry("bessel_jn in each row", jax.vmap(lambda z: special.bessel_jn(z, v=2, n_iter=20)), POSITIVE)
    yield entry(
        "sph_harm_y",
        lambda theta, phi: special.sph_harm_y(jnp.array([2]), jnp.array([1]), theta, phi, n_max=2),
        ANGLE(),
        POSITIVE(),
    )


ENTRIES = list(_entries())
