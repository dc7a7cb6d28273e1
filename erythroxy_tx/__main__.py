"""`python -m erythroxy_tx` is `erythroxy`."""

import sys

from erythroxy_tx.cli import main

sys.exit(main())
