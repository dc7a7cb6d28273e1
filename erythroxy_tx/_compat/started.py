"""Whether JAX has started a backend in this process, which public JAX does not tell without starting one."""

from jax._src import xla_bridge as _xla_bridge


def backend_started() -> bool:
    """Whether a backend runs, and so has read its settings: 0.10.2, 0.12.0.

    Without the lock of `backends_are_initialized`, which a plugin that changes the environment as it starts would wait
    for in vain.
    """
    return bool(_xla_bridge._backends)
