"""What Hypothesis learns of this library when it is imported: a profile for each kind of run, and strategies for the
library's types. Found by its entry point: so it must not import JAX, and Hypothesis only where it is called, or the
import of Hypothesis would find this module half made.
"""

import sys
from typing import Any

from erythroxy_tx.core.contract import AsAccurate
from erythroxy_tx.core.contract import Bitwise
from erythroxy_tx.core.contract import Close

# Inputs that are tried: while one works, before a change lands, and overnight.
PROFILES = {"fast": 6, "ci": 60, "thorough": 1000}


def register() -> None:
    """Register the profiles `erythroxy_fast`, `erythroxy_ci` and `erythroxy_thorough`, and the types."""
    import hypothesis.strategies as st

    for name in PROFILES:
        _register_profile(name, derandomize=True)
    st.register_type_strategy(Bitwise, st.builds(Bitwise))
    st.register_type_strategy(Close, st.floats(0, 1).map(Close))
    st.register_type_strategy(AsAccurate, st.floats(1, 100).map(AsAccurate))
    if "jax" in sys.modules:
        register_arrays(sys.modules["jax"])


def register_arrays(jax: Any) -> None:
    """Let `st.from_type(jax.Array)` draw from `arrays()`."""
    import hypothesis.strategies as st

    def drawn(_: type) -> Any:
        from erythroxy_tx.testing.strategies import arrays

        return arrays().map(jax.numpy.asarray)

    st.register_type_strategy(jax.Array, drawn)


def load(name: str, *, seeded: bool) -> None:
    """Make a profile that of this process.

    **Arguments:**

    - `name`: `"fast"`, `"ci"` or `"thorough"`.
    - `seeded`: whether the inputs are drawn from Hypothesis's seed, or are the same ones every time.
    """
    import hypothesis

    _register_profile(name, derandomize=not seeded)
    hypothesis.settings.load_profile(f"erythroxy_{name}")


def _register_profile(name: str, *, derandomize: bool) -> None:
    import hypothesis

    hypothesis.settings.register_profile(
        f"erythroxy_{name}",
        max_examples=PROFILES[name],
        derandomize=derandomize,
        database=None,
        deadline=None,  # the first example compiles
        # That is slow, and a proof inside a test is a search inside a search.
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.nested_given],
    )
