"""Matplotlib figures in the colours of the page that shows them."""

from __future__ import annotations

import html
import io
import re
from typing import Any

from nbtriton.common.packages import needed
from nbtriton.drawing.scene import series_colours

with needed("a plot"):
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

# matplotlib's black: written out, or omitted if a shape has no other style.
_INK = re.compile(r"#000000\b")
# Its style sheet would apply to every picture of the page, and all figures name their groups alike.
_NOT_FOR_A_PAGE = re.compile(
    r"<metadata>.*?</metadata>|<style type=\"text/css\">[^<]*</style>|(?<=<g) id=\"[^\"]*\"",
    re.DOTALL,
)
_STYLE = re.compile(r' style="([^"]*)"')
# Styles that SVG has attributes for, so that a host that strips styles still draws the figure.
_ATTRIBUTES = frozenset({
    "clip-path", "fill", "fill-opacity", "fill-rule", "font-family", "font-size", "opacity", "stroke",
    "stroke-dasharray", "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-miterlimit",
    "stroke-opacity", "stroke-width", "text-anchor",
})  # fmt: skip


def _attributes(style: re.Match[str]) -> str:
    """Return a style as attributes, where SVG has them."""
    pairs = [part.strip().partition(": ") for part in style[1].split(";") if part.strip()]
    known = "".join(f' {name}="{value}"' for name, _, value in pairs if name in _ATTRIBUTES)
    rest = "; ".join(f"{name}: {value}" for name, _, value in pairs if name not in _ATTRIBUTES)
    return f'{known} style="{rest}"' if rest else known


class PageFigure(Figure):
    """A matplotlib figure that has no white background on a dark page.

    In a notebook its background is the page's, and black is drawn in the colour of the page's text;
    files are black on white. The colours of its lines suit both.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> figure, axes = plt.subplots(figsize=(8, 2), FigureClass=nt.types.PageFigure)
    >>> plt.close(figure)
    """

    def add_subplot(self, *args: Any, **kwargs: Any) -> Any:
        """As matplotlib's, with line colours that can be told apart on a light and on a dark page."""
        axes = super().add_subplot(*args, **kwargs)
        axes.set_prop_cycle(color=series_colours())
        return axes

    def _description(self) -> str:
        """Return the titles of its panels, for a screen reader."""
        names = [axes.get_title() or axes.get_ylabel() for axes in self.axes]
        return "Chart: " + ", ".join(name for name in names if name) if any(names) else "Chart"

    def _repr_html_(self) -> str:
        framed = [legend for legend in self.findobj(Legend) if legend.get_frame_on()]
        file = io.StringIO()
        try:
            for legend in framed:
                legend.set_frame_on(False)
            with mpl.rc_context({"svg.fonttype": "none"}):  # text stays text
                self.savefig(file, format="svg", transparent=True, bbox_inches="tight")
        finally:
            for legend in framed:
                legend.set_frame_on(True)
        svg = file.getvalue()
        svg = _NOT_FOR_A_PAGE.sub("", svg[svg.index("<svg") :])
        svg = _STYLE.sub(_attributes, _INK.sub("currentColor", svg))
        begin = (
            f'<svg role="img" aria-label="{html.escape(self._description())}" fill="currentColor" '
            'stroke-linejoin="round" style="max-width:100%;height:auto" '
        )
        return f'<div class="nbt-plot">{svg.replace("<svg ", begin, 1)}</div>'
