"""Functions of `jax.scipy.stats`: densities and distribution functions of every distribution, ranks, modes, kernels."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy import stats

from .draws import ABOVE_ONE
from .draws import ANGLE
from .draws import BOOL
from .draws import COUNT
from .draws import DEFINITE
from .draws import NANS
from .draws import NORMAL
from .draws import POSITIVE
from .draws import PROBABILITY
from .draws import SIMPLEX
from .draws import SMALL
from .draws import TIED
from .draws import Draw
from .draws import between
from .entry import Entry
from .entry import Family

_STATS = Family("stats", "stats.")
_TRIALS = Draw(COUNT.values)

_OF_A_NUMBER: dict[str, tuple[Draw, ...]] = {
    "bernoulli": (BOOL, PROBABILITY),
    "beta": (PROBABILITY, POSITIVE, POSITIVE),
    "betabinom": (SMALL, between(5, 9), POSITIVE, POSITIVE),
    "binom": (SMALL, between(5, 9), PROBABILITY),
    "cauchy": (NORMAL,),
    "chi2": (POSITIVE, POSITIVE),
    "expon": (POSITIVE,),
    "gamma": (POSITIVE, POSITIVE),
    "gennorm": (NORMAL, POSITIVE),
    "geom": (_TRIALS, PROBABILITY),
    "gumbel_l": (NORMAL,),
    "gumbel_r": (NORMAL,),
    "laplace": (NORMAL, NORMAL, POSITIVE),
    "logistic": (NORMAL,),
    "nbinom": (_TRIALS, POSITIVE, PROBABILITY),
    "norm": (NORMAL, NORMAL, POSITIVE),
    "pareto": (ABOVE_ONE, POSITIVE),
    "poisson": (COUNT, POSITIVE),
    "t": (NORMAL, POSITIVE),
    "truncnorm": (NORMAL, between(-3, -2), between(2, 3)),
    "uniform": (between(0, 1),),
    "vonmises": (ANGLE, POSITIVE),
    "wrapcauchy": (between(0.1, 6), PROBABILITY),
}
"""What it is a density of, then the first of its parameters."""

_INVERSES = {"ppf", "isf"}


def functions_of(distribution: Any) -> list[str]:
    return [name for name, value in vars(distribution).items() if name[0] != "_" and callable(value)]


def _densities() -> Iterator[Entry]:
    for name, (value, *parameters) in _OF_A_NUMBER.items():
        distribution = getattr(stats, name)
        for function in functions_of(distribution):
            if function == "entropy":
                yield _STATS.entry(f"{name}.entropy", distribution.entropy, *parameters)
                continue
            fn: Callable[..., Array] = getattr(distribution, function)
            at = PROBABILITY if function in _INVERSES else value
            yield _STATS.entry(f"{name}.{function}", fn, at, *(draw.shared for draw in parameters))
            if function in {"logpdf", "logpmf"} and parameters:
                yield _STATS.entry(f"{name}.{function} with rows of parameters", fn, at, *parameters)


def _of_vectors() -> Iterator[Entry]:
    entry = _STATS.entry
    for function in ("logpdf", "pdf"):
        dirichlet, normal = getattr(stats.dirichlet, function), getattr(stats.multivariate_normal, function)
        yield entry(f"dirichlet.{function}", lambda x, a, f=dirichlet: f(x.T, a), SIMPLEX(3), POSITIVE(3).shared)
        yield entry(f"multivariate_normal.{function}", normal, NORMAL(4), NORMAL(4).shared, DEFINITE.shared)
        yield entry(f"multivariate_normal.{function} of means in rows", normal, NORMAL(4), NORMAL(4), DEFINITE.shared)
    for function in ("logpmf", "pmf"):
        multinomial = getattr(stats.multinomial, function)
        counts = jax.vmap(lambda x, p, f=multinomial: f(x, x.sum(), p), (0, None))
        yield entry(f"multinomial.{function}", counts, SMALL(3), SIMPLEX(3).shared)
    yield entry("norm.logpdf summed", lambda x: stats.norm.logpdf(x).sum(0), NORMAL)
    yield entry("norm.logpdf at its own moments", lambda x: stats.norm.logpdf(x, x.mean(0), 1 + x.std(0)), NORMAL)


def _samples() -> Iterator[Entry]:
    along, entry = _STATS.along, _STATS.entry
    yield from along(stats, "mode", TIED)
    yield from along(stats, "rankdata", NORMAL)
    yield from along(stats, "sem", NORMAL)
    yield entry("sem omits NaN", lambda x: stats.sem(x, nan_policy="omit"), NANS)
    for method in ("average", "min", "max", "dense", "ordinal"):
        yield entry(f"rankdata method={method}", lambda x, m=method: stats.rankdata(x, m, axis=0), TIED)

    def kernel(x: Array, points: Array, weights: Array | None = None) -> Array:
        return stats.gaussian_kde(x, 0.5, weights)(points)

    few = NORMAL(4).shared
    yield entry("gaussian_kde", kernel, NORMAL(), few, at_least=2)
    yield entry("gaussian_kde weighted", lambda x, w, p: kernel(x, p, w), NORMAL(), POSITIVE(), few, at_least=2)
    yield entry("gaussian_kde of shared at rows", lambda p, x: kernel(x, p), NORMAL(), NORMAL(6).shared)
    yield entry("gaussian_kde of two columns", lambda x, p: kernel(x.T, p), NORMAL(2), NORMAL(2, 4).shared)
    yield entry("gaussian_kde logpdf", lambda x, p: stats.gaussian_kde(x).logpdf(p), NORMAL(), few, at_least=2)
    yield entry("norm.cdf then uniform", lambda x: jnp.histogram(stats.norm.cdf(x), 4, (0, 1))[0], NORMAL())


ENTRIES = [*_densities(), *_of_vectors(), *_samples()]
