"""Proving that a decorated function computes the same thing: `prove`, `prove_relocation`, `prove_no_leak`, and
strategies that draw the inputs on which ports break. Needs the extra `testing` (hypothesis, pytest, chex).

Names are imported on first use, so that the pytest plugin loads without JAX.
"""

import importlib
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from erythroxy_tx.testing.leak import prove_no_leak as prove_no_leak
    from erythroxy_tx.testing.proof import Proof as Proof
    from erythroxy_tx.testing.proof import prove as prove
    from erythroxy_tx.testing.relocation import prove_relocation as prove_relocation
    from erythroxy_tx.testing.strategies import arrays as arrays
    from erythroxy_tx.testing.strategies import indices as indices
    from erythroxy_tx.testing.strategies import lengths as lengths
    from erythroxy_tx.testing.strategies import pytrees as pytrees
    from erythroxy_tx.testing.strategies import rows as rows

_HOME = {
    "prove": "proof",
    "Proof": "proof",
    "prove_relocation": "relocation",
    "prove_no_leak": "leak",
    "arrays": "strategies",
    "indices": "strategies",
    "lengths": "strategies",
    "pytrees": "strategies",
    "rows": "strategies",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'erythroxy_tx.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"erythroxy_tx.testing.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
