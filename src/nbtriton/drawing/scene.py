"""Pictures as plain data: a tree of shapes, written as SVG or as JSON for a live view.

Every figure of nbtriton is such a tree, so its static and its live form are the same picture.
Colours are roles, not values: each shape has a presentation attribute, for a host that strips style
sheets (a light card with dark ink), and a class, which the figure's own style sheet maps to the
theme of the host.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

Attr = str | float | int
# Left, top, right and bottom, in pixels.
Area = tuple[float, float, float, float]
# https://www.w3.org/TR/xml/#charsets: all other characters are an error, even escaped.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# role -> colour on a light card. The categories are Okabe-Ito's, in the order in which they keep
# 3:1 against both white and near-black; the last two are darkened for that.
_LIGHT: dict[str, str] = {
    "fg": "#1f2328",
    "muted": "#57606a",
    "line": "#d0d7de",
    "panel": "#f6f8fa",
    "bg": "#ffffff",
    "s0": "#0072b2",
    "s1": "#d55e00",
    "s2": "#009e73",
    "s3": "#b8588f",
    "s4": "#a87400",
    "s5": "#2b87bd",
}
SERIES_ROLES = ("s0", "s1", "s2", "s3", "s4", "s5")


def series_colours() -> tuple[str, ...]:
    """Return the colours of the categories, which suit both light and dark pages."""
    return tuple(_LIGHT[role] for role in SERIES_ROLES)


def _mixed(colour: str, ink_colour: str, share: float) -> str:
    """Mix two colours as ``color-mix(in srgb, ...)`` does."""
    pairs = ((int(colour[i : i + 2], 16), int(ink_colour[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in pairs)


# Mixing with the ink darkens a colour on a light theme and brightens it on a dark one. Marks keep
# 3:1 that way, and text in the colour of its series (roles t0 to t5) 4.5:1, in every host.
_MARK, _TEXT = 0.88, 0.68
_MIXES = {
    "muted": "color-mix(in srgb,var(--nbt-fg) 72%,var(--nbt-bg))",
    "line": "color-mix(in srgb,var(--nbt-fg) 20%,var(--nbt-bg))",
    "panel": "color-mix(in srgb,var(--nbt-fg) 5%,var(--nbt-bg))",
}
for _role in SERIES_ROLES:
    _name = f"t{_role[1:]}"
    _MIXES[_role] = f"color-mix(in srgb,{_LIGHT[_role]} {_MARK:.0%},var(--nbt-fg))"
    _MIXES[_name] = f"color-mix(in srgb,{_LIGHT[_role]} {_TEXT:.0%},var(--nbt-fg))"
    _LIGHT[_name] = _mixed(_LIGHT[_role], _LIGHT["fg"], _TEXT)
# VS Code's first: its renderer of widgets defines JupyterLab's too, those of the light theme.
_HOST_FG = "var(--vscode-editor-foreground,var(--jp-ui-font-color1,%s))"
_HOST_BG = "var(--vscode-editor-background,var(--jp-layout-color1,%s))"
_FONT = (
    "var(--jp-ui-font-family,system-ui),-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,"
    "'DejaVu Sans',sans-serif"
)


# Sizes of text in pixels: labels, text, and the sentence that says what is seen. A view's one large number is larger.
SMALL, TEXT, TITLE = 11, 12, 14
# The widths of pictures, for places of 600, 800 and 1,120 pixels.
WIDTHS = (540.0, 800.0, 1112.0)


def _colours() -> str:
    # The page's theme, not the system's preference: a white page may be open on a dark desktop.
    fg, bg = "light-dark(#1f2328,#e6edf3)", "light-dark(#ffffff,#161b22)"
    base = f"--nbt-fg:{_HOST_FG % fg};--nbt-bg:{_HOST_BG % bg};"
    return base + "".join(f"--nbt-{role}:{value};" for role, value in _MIXES.items())


def tokens() -> str:
    """Return the style rule of what live views have in common with pictures: colours by role, type and spacing."""
    return (
        f".nbt-root{{{_colours()}--nbt-control:color-mix(in srgb,var(--nbt-fg) 50%,var(--nbt-bg));--nbt-font:{_FONT};"
        f"--nbt-small:{SMALL}px;--nbt-text:{TEXT}px;--nbt-title:{TITLE}px;--nbt-gap:4px;--nbt-pad:8px}}"
    )


def _style() -> str:
    rules = "".join(
        f".nbt-fig .nbt-f-{role}{{fill:var(--nbt-{role})}}"
        f".nbt-fig .nbt-s-{role}{{stroke:var(--nbt-{role})}}"
        for role in _LIGHT
    )
    return f".nbt-fig{{{_colours()}font-family:{_FONT};font-variant-numeric:tabular-nums}}{rules}"


STYLE = _style()


@dataclass(frozen=True, slots=True)
class Shape:
    """One element: its tag, its attributes in order, and its children."""

    tag: str
    attrs: tuple[tuple[str, Attr], ...] = ()
    children: tuple[Shape | str, ...] = ()

    def walk(self) -> Iterator[Shape]:
        """Go through this shape and everything inside it, in drawing order."""
        yield self
        for child in self.children:
            if isinstance(child, Shape):
                yield from child.walk()


def shape(tag: str, *children: Shape | str, **attrs: Attr | None) -> Shape:
    """Make a shape; ``stroke_width`` is written ``stroke-width``, ``class_`` is ``class``."""
    named = tuple(
        (name.rstrip("_").replace("_", "-"), value)
        for name, value in attrs.items()
        if value is not None and value != ""
    )
    return Shape(tag, named, children)


def ink(fill: str | None = None, stroke: str | None = None, cls: str = "") -> dict[str, Attr]:
    """Return attributes that paint with the named roles, even without a style sheet."""
    classes = [cls] if cls else []
    attrs: dict[str, Attr] = {"fill": "none" if fill is None else _LIGHT[fill]}
    if fill is not None:
        classes.append(f"nbt-f-{fill}")
    if stroke is not None:
        attrs["stroke"] = _LIGHT[stroke]
        classes.append(f"nbt-s-{stroke}")
    attrs["class_"] = " ".join(classes)
    return attrs


def text(
    x: float,
    y: float,
    line: str,
    size: float,
    role: str,
    anchor: str = "",
    *,
    bold: bool = False,
    **attrs: Attr | None,
) -> Shape:
    """Make a line of text; `anchor` is SVG's ``text-anchor``, further attributes as in `shape`."""
    weight = 600 if bold else None
    return shape(
        "text", line, x=x, y=y, font_size=size, font_weight=weight, text_anchor=anchor, **attrs,
        **ink(role),
    )  # fmt: skip


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    *inside: Shape,
    rx: Attr | None = 2,
    **attrs: Attr | None,
) -> Shape:
    """Make a rectangle with rounded corners; further attributes as in `shape`."""
    return shape("rect", *inside, x=x, y=y, width=width, height=height, rx=rx, **attrs)


def stroke(d: str, role: str, cls: str = "", **attrs: Attr | None) -> Shape:
    """Make a line along a path, which fills nothing; further attributes as in `shape`."""
    return shape("path", d=d, **attrs, **ink(None, role, cls))


def figure(
    width: float,
    height: float,
    *children: Shape,
    label: str,
    title: str,
    cls: str,
    scales: bool = False,
) -> Shape:
    """Put shapes on a card with its own background and a name for screen readers.

    With `scales` the card shrinks with the available room; otherwise it keeps its text size.
    """
    card = rect(0.5, 0.5, width - 1, height - 1, rx=8, **ink("bg", "line"))
    return shape(
        "svg",
        shape("title", title),
        shape("style", STYLE),
        card,
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        class_=f"nbt-fig {cls}",
        font_family="system-ui, 'Segoe UI', Roboto, Arial, 'DejaVu Sans', sans-serif",
        style=f"max-width:{'100%' if scales else 'none'};height:auto",
    )


def to_svg(root: Shape) -> str:
    """Write the tree as SVG text."""
    parts: list[str] = []
    _write(root, parts)
    return "".join(parts)


def to_json(root: Shape) -> list[object]:
    """Return ``[tag, {attribute: value}, [children]]``, for a live view that builds elements."""
    return [
        root.tag,
        {name: value if isinstance(value, str) else _number(value) for name, value in root.attrs},
        [child if isinstance(child, str) else to_json(child) for child in root.children],
    ]


def _write(node: Shape, parts: list[str]) -> None:
    parts.append(f"<{node.tag}")
    for name, value in node.attrs:
        written = value if isinstance(value, str) else _number(value)
        parts.append(f' {name}="{escape(_readable(written))}"')
    if not node.children:
        parts.append("/>")
        return
    parts.append(">")
    for child in node.children:
        if isinstance(child, Shape):
            _write(child, parts)
        else:
            # A style sheet has no markup, and escaping its quotes would break it.
            is_style = node.tag == "style"
            parts.append(child if is_style else escape(_readable(child), quote=False))
    parts.append(f"</{node.tag}>")


def _readable(text: str) -> str:
    """Replace what XML cannot hold, such as a control character in a model's name."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _number(value: float) -> str:
    written = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if written == "-0" else written


def overlap(one: Area, two: Area) -> bool:
    """Return True if two areas have more than an edge in common."""
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


# Advance widths in em of DejaVu Sans, the widest of the fonts above: text never outgrows its box.
_NARROW = dict.fromkeys("ijl|.,:;'!I ", 0.31) | dict.fromkeys("ftr()[]-/", 0.41)
_WIDE = dict.fromkeys("mwMWOQ@%", 0.95)


def text_width(line: str, size: float, *, bold: bool = False) -> float:
    """Estimate the width of a line of text in pixels, never too small."""
    ems = 0.0
    for char in line:
        if char in _NARROW:
            ems += _NARROW[char]
        elif char in _WIDE:
            ems += _WIDE[char]
        else:
            ems += 0.72 if char.isupper() else 0.64
    return ems * size * (1.1 if bold else 1.0)


def shortened(
    line: str, room: float, size: float, *, bold: bool = False, keep_end: bool = False
) -> str:
    """Cut a line of text to a width in pixels, with an ellipsis where something is left out: in its middle with `keep_end`."""
    short = line
    for kept in range(len(line) - 1, 2, -1):
        if text_width(short, size, bold=bold) <= room:
            break
        tail = kept // 2 if keep_end else 0
        short = f"{line[: kept - tail]}…{line[len(line) - tail :]}"
    return short


def wrapped(line: str, room: float, size: float, *, bold: bool = True) -> list[str]:
    """Break a sentence into lines that fit the width; a number keeps its unit."""
    lines = [""]
    for word in re.split(r" (?!(?:ms|µs|s)\b)", line):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size, bold=bold) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def beside(picture: str, rest: str) -> str:
    """Put a picture and what belongs to it side by side where the page has room for both."""
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:0 24px;align-items:flex-start">'
        f'<div style="flex:0 1 {WIDTHS[1]:g}px;min-width:0">{picture}</div><div style="min-width:0">{rest}</div></div>'
    )


def fitting(scenes: Sequence[Shape]) -> str:
    """Return pictures of which a page shows the widest one that fits without cutting its text.

    Without a style sheet it shows the first, narrowest one.
    """
    if len(scenes) == 1:
        return f'<div style="overflow-x:auto">{to_svg(scenes[0])}</div>'
    widths = [math.ceil(float(dict(scene.attrs)["width"])) for scene in scenes]
    rules, parts = [".nbt-fit{container-type:inline-size;overflow-x:auto}"], []
    # The class names contain the widths, because figures of one page share their style sheets.
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
