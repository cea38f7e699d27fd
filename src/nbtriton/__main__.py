"""``python -m nbtriton``: the same as the command ``nbtriton``."""

import sys

from nbtriton.cli import main

sys.exit(main())
