"""`python -m erythroxy_tx.cli` is `erythroxy`."""

import sys

from erythroxy_tx.cli import main

sys.exit(main())
