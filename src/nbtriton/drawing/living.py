"""What answers in a page without a kernel: the charts of a file, and the button that copies a cell."""

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


# Shows the button: where a page runs no scripts of outputs it would do nothing, and stays hidden.
_REVEAL = "this.lastElementChild.hidden=false"
# Selects the cell, which is copied by hand where a page has no clipboard, as over http from elsewhere.
_COPY = (
    "const cell=this.previousElementSibling;getSelection().selectAllChildren(cell);"
    "navigator.clipboard?.writeText(cell.textContent).then(()=>{this.textContent='copied'})"
)


def advice_html(cell: str, why: str = "") -> str:
    """Write a change as HTML.

    Parameters
    ----------
    cell : str
        What to type.
    why : str, optional
        The reason for it.
    """
    said = f'<div style="margin:.6em 0 .3em">Try: {escape(why)}</div>' if why else ""
    return (
        f'{said}<div class="nbt-try" style="display:flex;gap:8px;align-items:flex-start" '
        f'onpointerenter="{_REVEAL}" onfocusin="{_REVEAL}">'
        '<pre tabindex="0" style="font-family:monospace;margin:2px 0 6px;padding:5px 9px;overflow-x:auto;color:inherit;'
        f'background:none;border:1px solid rgba(128,128,128,.45);border-radius:4px">{escape(cell)}</pre>'
        f'<button type="button" hidden onclick="{_COPY}">copy</button></div>'
    )


def advice_text(cell: str, why: str = "") -> list[str]:
    """Write a change as lines of text."""
    said = [f"Try: {why}"] if why else []
    return [*said, *(f"    {line}" for line in cell.splitlines())]
