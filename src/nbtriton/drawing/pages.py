"""Pictures for pages of different widths, without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nbtriton.drawing.scene import Shape, to_svg

__all__ = ["fitting"]


def fitting(scenes: Sequence[Shape]) -> str:
    """Return pictures of which a page shows the widest one that fits, and all of its text.

    Where there is no style sheet it is the first, narrowest one.
    """
    if len(scenes) == 1:
        return f'<div style="overflow-x:auto">{to_svg(scenes[0])}</div>'
    widths = [math.ceil(float(dict(scene.attrs)["width"])) for scene in scenes]
    rules, parts = [".nbt-fit{container-type:inline-size;overflow-x:auto}"], []
    # The classes have the widths in their names, as figures of one page share their style sheets.
    for at, (scene, width) in enumerate(zip(scenes, widths, strict=True)):
        following = widths[at + 1] if at + 1 < len(widths) else None
        name = f"nbt-fit-{width if at else 0}-{following or 'up'}"
        least = f"(min-width:{width}px)" if at else ""
        most = f"(max-width:{following - 0.02}px)" if following else ""
        shown = " and ".join(filter(None, (least, most)))
        rules.append(f".{name}{{display:none}}@container {shown}{{.{name}{{display:block}}}}")
        hidden = ' hidden=""' if at else ""
        parts.append(f'<div class="{name}"{hidden}>{to_svg(scene)}</div>')
    return f'<div class="nbt-fit"><style>{"".join(rules)}</style>{"".join(parts)}</div>'
