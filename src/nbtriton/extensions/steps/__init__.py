"""Ready steps of a pipeline: each is a folder of a model repository, which the real Triton runs as it is."""

from __future__ import annotations

from nbtriton.extensions.steps.library import STEPS, Step, Steps, step

__all__ = ["STEPS", "Step", "Steps", "step"]
