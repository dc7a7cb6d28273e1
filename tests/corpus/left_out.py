"""The public functions that no entry of the corpus is about, each with the reason.

Not here: functions that a version of a library does not have.
"""

_NO_ARRAY = "is about a dtype, a shape or a Python object, not about the values of an array"
_OUTSIDE = "reads or writes memory or files outside the program"
_STRING = "builds a string, or sets how strings are built"

LEFT_OUT: dict[str, str] = {
    "jnp.array_repr": _STRING,
    "jnp.array_str": _STRING,
    "jnp.broadcast_shapes": _NO_ARRAY,
    "jnp.can_cast": _NO_ARRAY,
    "jnp.einsum_path": "returns a plan for Python, not an array",
    "jnp.from_dlpack": _OUTSIDE,
    "jnp.frombuffer": _OUTSIDE,
    "jnp.fromfile": _OUTSIDE,
    "jnp.fromiter": "takes a Python iterator",
    "jnp.fromstring": "takes a string",
    "jnp.get_printoptions": _STRING,
    "jnp.iscomplexobj": _NO_ARRAY,
    "jnp.isdtype": _NO_ARRAY,
    "jnp.isrealobj": _NO_ARRAY,
    "jnp.isscalar": _NO_ARRAY,
    "jnp.issubdtype": _NO_ARRAY,
    "jnp.iterable": _NO_ARRAY,
    "jnp.load": _OUTSIDE,
    "jnp.mask_indices": "needs a whole number and a function of a matrix, no array",
    "jnp.ndim": _NO_ARRAY,
    "jnp.printoptions": _STRING,
    "jnp.promote_types": _NO_ARRAY,
    "jnp.result_type": _NO_ARRAY,
    "jnp.save": _OUTSIDE,
    "jnp.savez": _OUTSIDE,
    "jnp.set_printoptions": _STRING,
    "jnp.trim_zeros": "the shape of the result depends on the values, so jit refuses it",
    "nn.get_scaled_dot_general_config": _NO_ARRAY,
    "nn.scaled_matmul": "takes block scales of float8, which not every backend has",
    "special.bernoulli": "takes a static whole number, no array",
    "optax.convex_kl_divergence": "deprecated under this name: generalized_kl_divergence stands for it",
    "eqx.State": "holds the state of layers, and is none",
    "eqx.StateIndex": "holds the state of layers, and is none",
    "eqx.StatefulLayer": "an abstract base",
    "eqx.delete_init_state": "takes a layer, no array",
    "eqx.inference_mode": "takes a layer, no array",
    "eqx.make_with_state": "takes a layer, no array; entries with a state use it",
}
