"""What a step does, seen: samples go through it, and small pictures show them before and after."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from nbtriton.common.errors import TritonError
from nbtriton.model.config import ModelConfig, ReadyModel, input_specs
from nbtriton.serving.server import Server

__all__ = ["in_and_out"]

_HEIGHT, _WIDTH = 44, 72  # of a picture; the sample image is larger, so that it can be cropped
_SCALE = 6
_BOXES = [[4, 6, 30, 40], [7, 8, 33, 42], [36, 12, 66, 38], [38, 9, 68, 36]]


def in_and_out(made: ReadyModel) -> str:
    """Return HTML with samples and what a step makes of them; empty for one whose inputs have none."""
    try:
        inputs = _samples(made.config)
        with Server(gpus=()) as server:
            server.load(None, made, name="step")
            found = server.infer("step", {name: value[None] for name, value in inputs.items()})
    except (TritonError, KeyError):
        return ""
    return f"{_drawn(inputs)} → {_drawn({name: value[0] for name, value in found.items()})}"


def _samples(config: ModelConfig) -> dict[str, Any]:
    """Return a sample of each input by its name; KeyError for a name without one."""
    y, x = np.mgrid[: _HEIGHT * _SCALE, : _WIDTH * _SCALE] // _SCALE
    sun = ((x - 24) ** 2 + (y - 18) ** 2 < 150)[..., None]
    sky = np.stack([60 + 2 * x, 120 + y, 250 - 3 * y], -1)
    image = np.where(sun, (255, 220, 60), sky).astype(np.uint8)
    time = np.arange(9600) / 8000
    inputs = input_specs(config)
    samples = {
        "IMAGE": image,
        "DATA": np.array([_png(image)], object),
        "BOXES": np.array(_BOXES, np.float32),
        "SCORES": np.array([0.9, 0.8, 0.7, 0.6] + [0.95] * ("BOXES" not in inputs), np.float32),
        "CLASSES": np.zeros(4, np.int32),
        "AUDIO": np.sin(2 * np.pi * (100 + 1500 * time) * time).astype(np.float32),
    }
    if "IMAGE" in inputs and inputs["IMAGE"].datatype == "FP32":
        samples["IMAGE"] = image.astype(np.float32) / 255
    return {name: samples[name] for name in inputs}


def _drawn(tensors: Mapping[str, Any]) -> str:
    seen = {"BOXES": tensors["BOXES"]} if "BOXES" in tensors else tensors
    return " ".join(_picture(name, value) for name, value in seen.items())


def _picture(name: str, value: Any) -> str:
    if name == "BOXES":
        drawn = (
            f'<rect x="{a}" y="{b}" width="{c - a}" height="{d - b}"/>' for a, b, c, d in value
        )
        return _svg("".join(drawn))
    if name == "DATA":
        return _image(value[0])
    if value.dtype == object or (value.ndim == 1 and value.dtype.kind == "i"):
        texts = [one.decode() if isinstance(one, bytes) else str(one) for one in value]
        return f"<small>{escape(', '.join(texts))}</small>"
    if value.ndim == 1:
        value = value[:: len(value) // 200 + 1]
        low, width = min(value.min(), 0), _WIDTH / len(value)
        tops = _HEIGHT * (1 - (value - low) / (value.max() - low))
        zero = _HEIGHT * (1 + low / (value.max() - low))
        bars = (f"M{width * (at + 0.5):.1f} {zero:.1f}V{top:.1f}" for at, top in enumerate(tops))
        return _svg(f'<path stroke-width="{0.8 * width:.1f}" d="{"".join(bars)}"/>')
    if value.ndim == 2:
        value = value[::-1]  # low frequencies are at the bottom
    elif value.shape[-1] != 3:
        value = np.hstack(value)
    image = value if value.ndim == 3 else np.repeat(value[..., None], 3, -1)
    image = image[:: image.shape[0] // (3 * _HEIGHT) + 1, :: image.shape[0] // (3 * _HEIGHT) + 1]
    if image.dtype != np.uint8:
        low, high = image.min(), image.max()
        image = (255 * (image - low) / (high - low)).astype(np.uint8)
    return _image(_png(image))


def _svg(shapes: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" height="{_HEIGHT}" fill="none" stroke="currentColor" '
        f'style="vertical-align:middle" aria-hidden="true">{shapes}</svg>'
    )


def _image(data: bytes) -> str:
    code = b64encode(data).decode()
    style = f"height:{_HEIGHT}px;vertical-align:middle"
    return f'<img alt="" style="{style}" src="data:image/png;base64,{code}">'


def _png(image: Any) -> bytes:
    """Write pixels as a PNG, without a package."""
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    head = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )
