"""A corpus of functions of rows, each written one-shot, with inputs of any number of rows.

It covers the array functions of JAX, the layers of Equinox, the losses of Optax and programs as people write them.
`left_out.py` names what is left out, and why. What is compared with what is not here: a test decides that.
Imports are relative, because the package is `corpus` to pytest and `tests.corpus` from the root of the project.
"""

from . import compositions_fits
from . import compositions_nets
from . import compositions_order
from . import equinox_layers
from . import nn
from . import numpy_algebra
from . import numpy_axes
from . import numpy_elementwise
from . import numpy_shapes
from . import optax_losses
from . import special
from . import stats
from .entry import Entry

_FUNCTIONS = (numpy_elementwise, numpy_axes, numpy_shapes, numpy_algebra, nn, special, stats)
_LIBRARIES = (equinox_layers, optax_losses)
_PROGRAMS = (compositions_fits, compositions_order, compositions_nets)

ENTRIES: tuple[Entry, ...] = tuple(
    entry for module in (*_FUNCTIONS, *_LIBRARIES, *_PROGRAMS) for entry in module.ENTRIES
)

__all__ = ["ENTRIES", "Entry"]
