"""An instance in an actor of Ray does what one in a thread does: the tests of processes, elsewhere."""

from __future__ import annotations

import pytest

from tests.workers.test_instances import *  # noqa: F403 - they are run again

pytestmark = pytest.mark.slow
