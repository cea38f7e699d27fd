"""Figures of matplotlib that have the colours of the page they stand on."""

from __future__ import annotations

import io
import re
from typing import Any

from nbtriton.drawing.scene import series_colours
from nbtriton.packages import needed

with needed("a plot"):
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

__all__ = ["PageFigure"]

# matplotlib's black: written out, or left out where a shape has no other style.
_INK = re.compile(r"#000000\b")
# Its style sheet would hold for every picture of the page, and the names of its groups are those of every figure.
_NOT_FOR_A_PAGE = re.compile(
    r"<metadata>.*?</metadata>|<style type=\"text/css\">[^<]*</style>|(?<=<g) id=\"[^\"]*\"",
    re.DOTALL,
)


class PageFigure(Figure):
    """A figure of matplotlib that a dark page shows without a white slab.

    In a notebook its paper is the page's, and what is black has the colour of the page's text; files have
    black on white. Its lines have colours that hold on both.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> figure, axes = plt.subplots(figsize=(8, 2), FigureClass=nt.PageFigure)
    >>> plt.close(figure)
    """

    def add_subplot(self, *args: Any, **kwargs: Any) -> Any:
        """As matplotlib's, with lines that can be told apart on a light and on a dark page."""
        axes = super().add_subplot(*args, **kwargs)
        axes.set_prop_cycle(color=series_colours())
        return axes

    def _repr_html_(self) -> str:
        for legend in self.findobj(Legend):
            legend.set_frame_on(False)
        file = io.StringIO()
        with mpl.rc_context({"svg.fonttype": "none"}):  # text stays text
            self.savefig(file, format="svg", transparent=True, bbox_inches="tight")
        svg = file.getvalue()
        svg = _NOT_FOR_A_PAGE.sub("", svg[svg.index("<svg") :])
        style = "max-width:100%;height:auto;stroke-linejoin:round;fill:currentColor"
        svg = _INK.sub("currentColor", svg).replace("<svg ", f'<svg style="{style}" ', 1)
        return f'<div class="nbt-plot">{svg}</div>'
