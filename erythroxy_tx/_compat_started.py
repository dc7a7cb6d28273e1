"""The part of `_compat` that imports nothing: it is asked where JAX may be missing, broken or half imported, and the
package `_compat` imports JAX.
"""

import sys


def backend_started() -> bool:
    """Whether JAX has started a backend in this process; False too where this version of JAX does not tell.

    The lock of JAX's own question is not taken: a plugin that sets a variable as it starts would wait for it in vain.
    0.10.2, 0.12.0.
    """
    return bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))
