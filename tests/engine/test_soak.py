"""A short soak; `python -m tests.engine.soak` takes its time."""

import pytest

from tests.engine.soak import soak


@pytest.mark.medium
def test_nothing_is_lost_while_models_change_under_load():
    found = soak(seconds=1, seed=1)
    assert found["answered"] > 0
    assert found["instances"] + found["replaced"] > 0
