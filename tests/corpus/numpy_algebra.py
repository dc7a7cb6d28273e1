"""Products, linear algebra, transforms, polynomials, moments and convolutions of `jax.numpy`.

Not here: what works element by element, and reductions that are no products.
"""

from collections.abc import Iterator
from itertools import product

import jax
import jax.numpy as jnp

from .draws import COMPLEX
from .draws import DEFINITE
from .draws import NORMAL
from .draws import POSITIVE
from .draws import TIED
from .draws import UNIT
from .draws import Draw
from .entry import Entry
from .entry import Family
from .entry import calling
from .entry import named

_NUMPY = Family("numpy", "jnp.")
_SQUARE = NORMAL(4, 4)


def _products() -> Iterator[Entry]:
    call, entry = _NUMPY.call, _NUMPY.entry
    yield entry("cross", jnp.cross, NORMAL(3), NORMAL(3))
    yield entry("cross with a shared row", jnp.cross, NORMAL(3), NORMAL(3).shared)
    yield entry("linalg.cross", jnp.linalg.cross, NORMAL(3), NORMAL(3))
    for name in ("dot", "inner", "vdot", "outer", "kron"):
        yield call(jnp, name, NORMAL(), NORMAL(), note="numbers")
    for name in ("dot", "matmul"):
        yield call(jnp, name, NORMAL, NORMAL(5, 3).shared, note="with a shared matrix")
        yield call(jnp, name, NORMAL, NORMAL.shared, note="with a shared row")
        yield call(jnp, name, NORMAL.along(1), NORMAL, note="Gram")
    yield entry("dot of rows with rows", lambda x, y: jnp.dot(x, y.T), NORMAL, NORMAL)
    yield entry("inner of tables", jnp.inner, NORMAL, NORMAL)
    yield entry("inner with a shared row", jnp.inner, NORMAL, NORMAL.shared)
    yield entry("vdot of tables", jnp.vdot, COMPLEX, COMPLEX)
    for name in ("outer", "kron"):
        yield call(jnp, name, NORMAL(), NORMAL(3).shared, note="with shared")
    yield entry("kron of tables", jnp.kron, NORMAL(2), NORMAL(2, 2).shared)
    yield entry("linalg.outer", jnp.linalg.outer, NORMAL(), NORMAL(3).shared)
    yield entry("matmul x.T @ x", lambda x: x.T @ x, NORMAL)
    yield entry("matmul x.T @ y of numbers", lambda x, y: x.T @ y, NORMAL, NORMAL())
    yield entry("matmul x @ x.T", lambda x: x @ x.T, NORMAL)
    yield entry("matmul in each row", lambda x, y: x @ y, NORMAL(3, 4), NORMAL(4, 2))
    yield entry("linalg.matmul with a shared matrix", jnp.linalg.matmul, NORMAL, NORMAL(5, 3).shared)
    for space, prefix in ((jnp, ""), (jnp.linalg, "linalg.")):
        yield entry(f"{prefix}vecdot", lambda x, y, s=space: s.vecdot(x, y), NORMAL, NORMAL)
        yield entry(f"{prefix}vecdot axis=0", lambda x, y, s=space: s.vecdot(x, y, axis=0), NORMAL, NORMAL)
        yield entry(
            f"{prefix}tensordot over rows", lambda x, y, s=space: s.tensordot(x, y, axes=(0, 0)), NORMAL, NORMAL
        )
    yield entry("tensordot axes=1", lambda x, y: jnp.tensordot(x, y, axes=1), NORMAL, NORMAL(5, 3).shared)
    yield entry("tensordot axes=2", lambda x, y: jnp.tensordot(x, y, axes=2), NORMAL, NORMAL)
    yield entry("matvec", jnp.matvec, NORMAL(3, 4), NORMAL(4))
    yield entry("matvec with a shared matrix", jnp.matvec, NORMAL(3, 4).shared, NORMAL(4))
    yield entry("vecmat", jnp.vecmat, NORMAL(3), NORMAL(3, 4))
    for form in ("ni,nj->ij", "ni,ni->n", "ni,nj->nij", "ni,nj->", "ni,mi->nm", "ni,nj->j"):
        yield entry(f"einsum {form}", lambda x, y, form=form: jnp.einsum(form, x, y), NORMAL, NORMAL)
    yield entry("einsum with a shared matrix", lambda x, w: jnp.einsum("ni,ij->nj", x, w), NORMAL, NORMAL(5, 3).shared)
    yield entry("einsum of three", lambda x, w: jnp.einsum("ni,ij,nj->n", x, w, x), NORMAL, NORMAL(5, 5).shared)
    yield entry("einsum of one", lambda x: jnp.einsum("nij->ji", x), NORMAL(3, 4))
    yield entry("linalg.multi_dot", lambda x, w: jnp.linalg.multi_dot([x.T, x, w]), NORMAL, NORMAL(5, 3).shared)
    yield entry("trace of each row", lambda x: jnp.trace(x, axis1=1, axis2=2), _SQUARE)
    yield entry("trace", jnp.trace, NORMAL)
    yield entry("linalg.trace", jnp.linalg.trace, _SQUARE)
    yield entry("linalg.diagonal", jnp.linalg.diagonal, _SQUARE)
    yield entry("linalg.matrix_transpose", jnp.linalg.matrix_transpose, NORMAL(3, 4))
    yield entry("vander", lambda x: jnp.vander(x, 4), UNIT())
    yield entry("vander increasing", lambda x: jnp.vander(x, 3, increasing=True), UNIT())
    yield entry("vander of as many powers as rows", jnp.vander, UNIT())


def _in_each_row() -> Iterator[Entry]:
    entry = _NUMPY.entry
    of_one: dict[Draw, str] = {
        DEFINITE: "cholesky eigh eigvalsh matrix_rank svdvals",
        _SQUARE: "cond det eig eigvals inv pinv qr slogdet svd matrix_norm",
    }
    for draw, names in of_one.items():
        for name, fn in named(jnp.linalg, names):
            yield entry(f"linalg.{name} of each row", fn, draw)
    solve, lstsq = jnp.linalg.solve, jnp.linalg.lstsq
    yield entry("linalg.solve in each row", lambda a, b: solve(a, b[..., None])[..., 0], DEFINITE, NORMAL(4))
    yield entry("linalg.solve for rows", lambda a, b: solve(a, b.T).T, DEFINITE.shared, NORMAL(4))
    yield entry("linalg.solve of the Gram matrix", lambda x, y: solve(x.T @ x + jnp.eye(5), x.T @ y), NORMAL, NORMAL())
    yield entry("linalg.lstsq in each row", jax.vmap(lambda a, b: lstsq(a, b)[0]), DEFINITE, NORMAL(4))
    yield entry("linalg.matrix_power", lambda x: jnp.linalg.matrix_power(x, 3), _SQUARE)
    yield entry("linalg.tensorinv in each row", jax.vmap(lambda x: jnp.linalg.tensorinv(x, 1)), DEFINITE)
    yield entry("linalg.tensorsolve in each row", jax.vmap(jnp.linalg.tensorsolve), DEFINITE, NORMAL(4))


def _of_the_table() -> Iterator[Entry]:
    """Linear algebra of the (n, k) matrix itself."""
    entry = _NUMPY.entry
    yield entry("linalg.svd of the table", lambda x: jnp.linalg.svd(x, full_matrices=False)[1], NORMAL)
    yield entry("linalg.svdvals of the table", jnp.linalg.svdvals, NORMAL)
    yield entry("linalg.qr of the table", lambda x: jnp.abs(jnp.linalg.qr(x)[1]), NORMAL)
    yield entry("linalg.pinv of the table", jnp.linalg.pinv, NORMAL)
    yield entry("linalg.lstsq of the table", lambda x, y: jnp.linalg.lstsq(x, y)[0], NORMAL, NORMAL())
    yield entry("linalg.matrix_rank of the table", jnp.linalg.matrix_rank, NORMAL)
    yield entry("linalg.cond of the table", jnp.linalg.cond, NORMAL)
    yield entry("linalg.eigvalsh of the Gram matrix", lambda x: jnp.linalg.eigvalsh(x.T @ x), NORMAL)
    yield entry("linalg.slogdet of the Gram matrix", lambda x: jnp.linalg.slogdet(x.T @ x + jnp.eye(5)), NORMAL)
    yield entry("linalg.solve of rows by rows", lambda x: jnp.linalg.solve(x @ x.T + jnp.eye(x.shape[0]), x), NORMAL)
    for order in (None, "fro", 1, jnp.inf, "nuc", 2):
        yield entry(f"linalg.norm ord={order}", lambda x, order=order: jnp.linalg.norm(x, order), NORMAL)
    for axis, order in product((0, 1), (None, 1, 3, jnp.inf, 0)):
        name = f"linalg.norm axis={axis} ord={order}"
        yield entry(
            name, lambda x, axis=axis, order=order: jnp.linalg.norm(x, order, axis), TIED if order == 0 else NORMAL
        )
    for axis in (0, 1, None):
        yield entry(
            f"linalg.vector_norm axis={axis}", lambda x, axis=axis: jnp.linalg.vector_norm(x, axis=axis), NORMAL
        )
    yield entry("linalg.matrix_norm of the table", jnp.linalg.matrix_norm, NORMAL)


def _transforms() -> Iterator[Entry]:
    entry = _NUMPY.entry
    real = {"fft", "rfft", "ihfft"}
    for name, fn in named(jnp.fft, "fft ifft rfft irfft hfft ihfft"):
        draw = NORMAL(8) if name in real else COMPLEX(8)
        for axis in (0, 1):
            yield entry(f"fft.{name} axis={axis}", calling(fn, axis=axis), draw)
    for name, fn in named(jnp.fft, "fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn"):
        draw = NORMAL(4, 6) if name.startswith("rfft") else COMPLEX(4, 6)
        yield entry(f"fft.{name} in each row", calling(fn, axes=(1, 2)), draw)
    yield entry("fft.fft2 of the table", jnp.fft.fft2, NORMAL(4))
    yield entry("fft.fft of a fixed length", lambda x: jnp.fft.fft(x, 4, axis=0), NORMAL)
    yield entry("fft.rfft of numbers", jnp.fft.rfft, NORMAL())
    for name, fn in named(jnp.fft, "fftshift ifftshift"):
        for axis in (0, 1):
            yield entry(f"fft.{name} axis={axis}", calling(fn, axes=axis), NORMAL)


def _moments_and_polynomials() -> Iterator[Entry]:
    entry = _NUMPY.entry
    yield entry("average weighted", lambda x, w: jnp.average(x, axis=0, weights=w), NORMAL, POSITIVE())
    for name in ("cov", "corrcoef"):
        moments = getattr(jnp, name)
        yield entry(f"{name} of columns", lambda x, f=moments: f(x, rowvar=False), NORMAL)
        yield entry(f"{name} of rows", lambda x, f=moments: f(x), NORMAL)
        yield entry(f"{name} of two", lambda x, y, f=moments: f(x, y), NORMAL(), NORMAL())
    yield entry("cov weighted", lambda x, w: jnp.cov(x, rowvar=False, aweights=w), NORMAL(3), POSITIVE())
    for mode in ("full", "same", "valid"):
        for name, fn in named(jnp, "convolve correlate"):
            yield entry(f"{name} {mode}", calling(fn, mode=mode), NORMAL(), NORMAL(3).shared)
    yield entry("convolve in each row", jax.vmap(jnp.convolve, (0, None)), NORMAL, NORMAL(3).shared)
    yield entry("convolve rows with rows", jnp.convolve, NORMAL(), NORMAL())
    yield entry("polyfit", lambda x, y: jnp.polyfit(x, y, 2), UNIT(), NORMAL())
    yield entry("polyadd", jnp.polyadd, NORMAL(), NORMAL())
    yield entry("polysub", jnp.polysub, NORMAL(), NORMAL(3).shared)
    yield entry("polymul", jnp.polymul, NORMAL(), NORMAL(3).shared)
    yield entry("polydiv", jax.vmap(jnp.polydiv), NORMAL(5), POSITIVE(3))
    yield entry("polyder", jnp.polyder, NORMAL())
    yield entry("polyder in each row", jax.vmap(jnp.polyder), NORMAL)
    yield entry("polyint in each row", jax.vmap(jnp.polyint), NORMAL)
    yield entry("poly in each row", jax.vmap(jnp.poly), NORMAL(3))
    yield entry("roots in each row", jax.vmap(lambda p: jnp.roots(p, strip_zeros=False)), POSITIVE(4))


ENTRIES = [
    *_products(),
    *_in_each_row(),
    *_of_the_table(),
    *_transforms(),
    *_moments_and_polynomials(),
]
