"""``python -m nbtriton``, equal to the command ``nbtriton``."""

import sys

from nbtriton.magics.cli import main

sys.exit(main())
