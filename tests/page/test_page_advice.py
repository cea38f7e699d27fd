"""The cell to try, with its button, on a page that runs scripts of outputs and on one that does not."""

from __future__ import annotations

import pytest

from nbtriton.drawing.living import advice_html

pytestmark = pytest.mark.browser

CELL = "%%triton_config m\ndynamic_batching { max_queue_delay_microseconds: 0 }  # <b>"


def test_a_click_copies_the_cell_and_selects_it(new_page, site):
    # A page has a clipboard at https and on its own machine only.
    site.files = {"/": ("text/html", advice_html(CELL, "an instance was idle"))}
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    page.goto(f"http://127.0.0.1:{site.server_port}/")
    button = page.get_by_role("button", name="copy")
    assert not button.is_visible()
    page.locator("pre").hover()
    button.click()
    assert page.evaluate("getSelection().toString()").strip() == CELL
    page.get_by_role("button", name="copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == CELL


def test_the_keyboard_reaches_it(browser):
    page = browser.new_page()
    page.set_content(advice_html(CELL))
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "copy"
    page.keyboard.press("Enter")
    assert page.evaluate("getSelection().toString()").strip() == CELL
    page.close()


def test_without_scripts_there_is_no_button(open_html):
    page = open_html(advice_html(CELL, "an instance was idle"))
    page.locator("pre").hover()
    assert page.locator("pre").inner_text() == CELL
    assert not page.locator("button").is_visible()
