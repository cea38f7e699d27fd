"""Placements: the devices of a pipeline's steps, by a name or for each model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.model.config import ModelConfig

# A name, or the device of each model: "cpu", "gpu" (all of them) or "gpu:1".
Placement = str | Mapping[str, str]

PLACEMENTS = ("cpu", "models-on-gpu", "gpu")
_DEVICE = re.compile(r"cpu|gpu(:\d+)?")
# Backends with user code: the steps before and after a model, in published pipelines.
_CODE = ("python",)


def placement_list(given: Placement | Sequence[Placement]) -> list[Placement]:
    """Return one placement or several as a validated list.

    Raises
    ------
    InvalidArgumentError
        An unknown name or device.
    """
    listed = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    placements: list[Any] = list(given) if listed else [given]
    for one in placements:
        check_placement(one)
    return placements


def check_placement(placement: Placement) -> None:
    """Refuse an invalid placement.

    Raises
    ------
    InvalidArgumentError
    """
    if not isinstance(placement, str | Mapping):
        raise InvalidArgumentError(
            f"placement must be {', '.join(PLACEMENTS)}, gpu:N, a device for each model, or a list of them; "
            f"found {placement!r}"
        )
    if isinstance(placement, str):
        if placement not in PLACEMENTS and not _DEVICE.fullmatch(placement):
            raise InvalidArgumentError(
                f"unknown placement '{placement}': it is {', '.join(PLACEMENTS)}, gpu:N for one GPU, or a "
                "device for each model",
                hint=nearest(placement, PLACEMENTS),
            )
        return
    for model, device in placement.items():
        if not _DEVICE.fullmatch(str(device)):
            raise InvalidArgumentError(
                f"unknown device '{device}' of model '{model}': it is cpu, gpu or gpu:N",
                hint=nearest(str(device), ("cpu", "gpu")),
            )


def device_of(placement: Placement, config: ModelConfig) -> str | None:
    """Return the device of a model in a placement: ``"cpu"``, ``"gpu"`` or ``"gpu:1"``.

    None for a model that the placement does not mention. With ``"models-on-gpu"`` Python steps, which come
    before and after the models, stay on the host.
    """
    if not isinstance(placement, str):
        return placement.get(config.name)
    if placement == "models-on-gpu":
        return "cpu" if config.backend in _CODE else "gpu"
    return placement


def placed(config: ModelConfig, placement: Placement) -> dict[str, Any]:
    """Return the options of `nbtriton.model.config.apply_options` for a model in a placement."""
    device = device_of(placement, config)
    if device is None:
        return {}
    kind, _, index = device.partition(":")
    # Without an id all GPUs, like an instance group without `gpus`; the host has none.
    return {"kind": kind, "gpus": [int(index)] if index else []}


def show_placement(placement: Placement) -> str:
    """Return a placement as text."""
    if isinstance(placement, str):
        return placement
    return " ".join(f"{model}={device}" for model, device in placement.items())
