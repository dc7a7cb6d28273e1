"""The bits of bf16 numbers as a primitive of its own: JAX gives the derivative of bits as zero, and forgets a custom
rule once it has differentiated what is around it. Each use of unstable JAX: 0.10.2, 0.12.0.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad
from jax.interpreters import batching
from jax.interpreters import mlir


def bits_of_bf16(x: Any) -> jax.Array:
    """Two bytes a number, bf16 as uint16. What it is used in cannot be differentiated again."""
    return _bits.bind(x)


def rewrites_stacks_of_bf16() -> bool:
    """Whether the compiler turns a stack of bf16 to f32 and back at each step of a loop: on CPUs, in 0.10.2."""
    return jax.version.__version_info__ < (0, 11) and jax.default_backend() == "cpu"


def _cast(x: Any) -> jax.Array:
    return lax.bitcast_convert_type(x, jnp.uint16)


def _no_derivative(primals: tuple, tangents: tuple) -> Any:
    raise NotImplementedError(
        "tx.bf16_carry_scan was differentiated twice on a CPU with jax before 0.11, where its tape is bits, which have "
        "no derivative. Expected one derivative. Fix: tx.checkpointed_scan, which is exact, or a newer jax."
    )


_bits = Primitive("bits_of_bf16")
_bits.def_impl(_cast)
_bits.def_abstract_eval(lambda x: x.update(dtype=jnp.dtype(jnp.uint16), weak_type=False))  # and its sharding
ad.primitive_jvps[_bits] = _no_derivative
batching.defvectorized(_bits)
mlir.register_lowering(_bits, mlir.lower_fun(_cast, multiple_results=False))
