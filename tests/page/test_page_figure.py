"""Figures in a real browser, on a stub model: played, stepped, scrubbed, changed, predicted, read."""

from __future__ import annotations

import pytest

import nbtriton as nt
from tests.widgets.samples import which_batches

pytestmark = pytest.mark.browser

_TRAITS = (
    "stages", "moments", "fields", "title", "finding", "problem", "question", "mark", "span_ms",
    "grid_ms", "moved",
)  # fmt: skip


@pytest.fixture
def figure(own_progress):
    return nt.lessons.figure("batch_forms")


def words(page):
    return page.locator(".nbt-figure-words").inner_text()


def where(page):
    return page.locator(".nbt-figure-bar output").inner_text()


def tokens(page, state):
    return page.locator(f".nbt-token.nbt-{state} text").all_text_contents()


def answer(page, figure):
    """Hand what the page asked for to the kernel's side, and its answer to the page."""
    asked = page.evaluate(
        "sent.filter(word => !['open', 'here', 'ack'].includes(word.kind)).at(-1)"
    )
    figure.widget.handle_message(asked)
    page.evaluate("put", {name: getattr(figure.widget, name) for name in _TRAITS})
    return asked


def settle(page):
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_it_is_stepped_and_scrubbed_by_keys(open_view, figure):
    page = open_view(figure.widget)
    assert where(page).startswith("11 of 11")
    page.locator("input[type=range]").focus()
    page.keyboard.press("Home")
    assert words(page) == "Request 1 arrives"
    assert (tokens(page, "waits"), tokens(page, "runs")) == (["1"], [])
    page.keyboard.press("ArrowRight")
    assert tokens(page, "runs") == ["1"]
    assert page.locator(".nbt-reason.nbt-on").text_content().startswith("I")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert tokens(page, "waits") == ["2", "3", "4"]
    page.get_by_role("button", name="one step on").click()
    assert tokens(page, "runs") == ["2", "3", "4"]
    assert "requests joined while it waited" in page.locator(".nbt-reason.nbt-on").text_content()
    assert "leave as one batch" in words(page)
    page.get_by_role("button", name="one step back").focus()
    page.keyboard.press("End")
    assert where(page).startswith("11 of 11")
    assert tokens(page, "waits") == tokens(page, "runs") == []


def test_it_plays_and_pauses(open_view, figure):
    page = open_view(figure.widget, motion="no-preference")
    page.clock.install(time=0)
    # From here on the page's time goes on by the test alone; until then by itself, on a busy machine for long.
    page.clock.pause_at(600_000)
    page.get_by_role("button", name="play", exact=True).click()
    page.clock.run_for(100)
    assert where(page).startswith("1 of 11")
    page.clock.run_for(3000)
    stands = where(page)
    assert stands.startswith("4 of 11")
    page.get_by_role("button", name="pause", exact=True).click()
    page.clock.run_for(10_000)
    assert where(page) == stands
    page.get_by_role("button", name="play", exact=True).click()
    page.clock.run_for(30_000)
    assert where(page).startswith("11 of 11")
    assert page.get_by_role("button", name="play", exact=True).is_visible()
    # It went on in the page alone.
    assert not page.evaluate("sent.some(word => word.kind === 'edit')")
    page.evaluate("cleanup()")
    assert page.evaluate("listeners()") == 0
    page.context.close()  # its clock stands still


def test_with_reduced_motion_it_only_steps(open_view, figure):
    page = open_view(figure.widget, motion="reduce")
    assert page.get_by_role("button", name="play", exact=True).count() == 0
    assert (
        page.locator(".nbt-token").first.evaluate("t => getComputedStyle(t).transitionDuration")
        == "0s"
    )
    page.get_by_role("button", name="to the begin").click()
    assert words(page) == "Request 1 arrives"


def test_what_is_changed_is_run_by_the_kernel(open_view, figure):
    page = open_view(figure.widget)
    page.get_by_label("instances").fill("2")
    page.keyboard.press("Enter")
    assert answer(page, figure) == {"kind": "edit", "changes": {"instances": "2"}}
    settle(page)
    assert page.locator(".nbt-figure-finding").inner_text() == figure.finding
    assert page.locator(".nbt-figure-svg [data-role=batch]").count() == len(figure.batches)
    page.get_by_label("requests at (ms)").fill("soon")
    page.get_by_role("button", name="Run").click()
    answer(page, figure)
    settle(page)
    assert "'soon' is no arrival" in page.get_by_role("alert").inner_text()
    # A request is moved by its keys, and keeps the focus.
    page.locator(".nbt-life[data-client='1']").focus()
    page.keyboard.press("ArrowRight")
    asked = answer(page, figure)
    assert (asked["kind"], asked["request"]) == ("move", 1)
    assert asked["at_ms"] > 5
    settle(page)
    assert (
        page.evaluate("document.activeElement.getAttribute('aria-label')") == "arrival of request 2"
    )
    assert float(page.evaluate("document.activeElement.dataset.at")) == asked["at_ms"]


def test_a_request_is_dragged(open_view, figure):
    page = open_view(figure.widget)
    box = page.locator(".nbt-life[data-client='4'] circle").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 100, y)
    page.mouse.up()
    asked = answer(page, figure)
    assert (asked["kind"], asked["request"]) == ("move", 4)
    assert asked["at_ms"] < 30


def test_a_prediction_is_marked_and_then_shown(open_view, figure):
    asked = nt.lessons.figure(which_batches)
    page = open_view(asked.widget)
    assert "Which batches leave?" in page.locator(".nbt-figure-question").inner_text()
    assert page.locator("[data-role=batch], .nbt-token").count() == 0
    page.get_by_label("your batches").fill("[5]")
    page.keyboard.press("Enter")
    answer(page, asked)
    settle(page)
    assert "Batch 1 left with 1 row (request 1), not 5" in page.locator(".nbt-wrong").inner_text()
    page.get_by_label("your batches").fill("[1, 3, 1]")
    page.get_by_role("button", name="Check").click()
    answer(page, asked)
    settle(page)
    assert "right" in page.locator(".nbt-right").inner_text()
    assert page.locator("[data-role=batch]").count() == 3
    assert not page.get_by_label("your batches").is_visible()


@pytest.mark.parametrize("width", [600])
def test_text_is_never_small(open_view, figure, width):
    page = open_view(nt.lessons.figure("sequence_slots").widget, width=width)
    sizes = page.evaluate(
        "[...document.querySelectorAll('#w svg text')].map(t => parseFloat(getComputedStyle(t).fontSize)"
        " * t.getScreenCTM().a)"
    )
    assert min(sizes) >= 10.99
    assert page.evaluate("document.querySelector('#w svg').getBoundingClientRect().width") <= width


@pytest.mark.parametrize("host", ["plain-light", "lab-dark"])
def test_text_stands_out_and_axe_finds_nothing_serious(open_view, contrasts, serious, host):
    page = open_view(nt.lessons.figure("ensemble_request").widget, host)
    weak = [(text, round(ratio, 2)) for text, ratio in contrasts(page) if ratio < 4.5]
    assert not weak
    assert serious(page) == []


def test_the_static_form_reads_in_a_dark_page(open_html, contrasts):
    page = open_html(nt.lessons.figure("sequence_slots").static().html, "plain-dark")
    assert page.locator(".nbt-figure-svg").filter(visible=True).count() == 1
    weak = [(text, round(ratio, 2)) for text, ratio in contrasts(page) if ratio < 4.5]
    assert not weak


def test_a_figure_whose_picture_is_renewed_keeps_the_focus(open_view, figure):
    page = open_view(figure.widget)
    page.evaluate(
        """() => {
            cleanup();
            window.form = `<div class="nbt-place ${model.get("place")}">a picture</div>`;
            document.getElementById("w2").innerHTML = form;
            widget.initialize({ model });
        }"""
    )
    field = page.locator("#w2 .nbt-host").get_by_label("instances")
    field.focus()
    # As a notebook does whose output is replaced.
    page.evaluate("document.getElementById('w2').innerHTML = form")
    assert field.evaluate("one => one === document.activeElement")
    # What a reader has left is not taken back.
    field.blur()
    page.evaluate("document.getElementById('w2').innerHTML = form")
    assert page.evaluate("document.activeElement === document.body")
