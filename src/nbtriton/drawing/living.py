"""HTML files whose charts answer to pointer and keys, without a kernel."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from nbtriton.drawing.scene import tokens

_STYLE = (
    ":root{color-scheme:light dark}body{font:14px/1.4 system-ui,sans-serif;margin:2em auto;max-width:75em;"
    "padding:0 1em;color:CanvasText;background:Canvas}"
)


def living_page(title: str, body: str) -> str:
    """Return a file with the given HTML; the script that brings its charts to life is a notebook's."""
    folder = files("nbtriton") / "widgets"
    script, style = (
        "\n".join((folder / f"{name}{ending}").read_text("utf-8") for name in ("shared", "chart"))
        for ending in (".js", ".css")
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<style>{_STYLE}{tokens()}{style}</style></head><body>{body}<script type="module">{script}'
        "enlivenAll(document);</script></body></html>\n"
    )
