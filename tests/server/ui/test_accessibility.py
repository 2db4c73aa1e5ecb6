"""axe-core finds nothing wrong with the page in any state, and the keyboard reaches all of it."""

import pytest

from .conftest import DEMO, check_access, choose, opened, says

pytestmark = pytest.mark.browser


SETTLED = """
Promise.all(document.getAnimations().filter((each) => each.animationName === 'appear')
    .map((each) => each.finished.then(() => null)))
"""


# Colours depend on the scheme, and what is shown on the width.
@pytest.mark.parametrize(("scheme", "width"), [("light", 1300), ("dark", 390)])
def test_axe_finds_nothing(browser, page_server, scheme, width, tmp_path):
    (tmp_path / "notes.jpg").write_text("this is no image")

    with opened(browser, page_server, width=width, color_scheme=scheme) as page:
        check_access(page)
        page.route("**/predict?*", lambda route: route.abort(), times=1)
        page.set_input_files("#files", DEMO / "scene-2.jpg")
        page.locator(".again").wait_for()
        check_access(page)
        page.click("#remove")
        held = []
        page.route("**/predict?*", lambda route: held.append(route), times=1)
        page.set_input_files("#files", DEMO / "scene-2.jpg")
        page.locator(".sending").wait_for()
        page.evaluate(SETTLED)
        check_access(page)
        held[0].continue_()
        choose(page, DEMO / "scene-1.jpg", DEMO / "scene-2.jpg")
        page.click("summary:has-text('Engine card')")
        page.click("[data-zoom=in]")
        page.get_by_role("button", name="Boxes").click()
        page.get_by_label("Answer").check(force=True)
        check_access(page)
        page.fill("#tile", "2x2")
        page.locator("#tile").blur()
        page.locator("#overlap").wait_for()
        check_access(page)
        page.click("#compare")
        says(page, "#summary", "Both")
        page.locator("#found .row").first.click()
        page.set_input_files("#files", tmp_path / "notes.jpg")
        page.locator("#alert").wait_for()
        check_access(page)
        page.route("**/v1/models", lambda route: route.fulfill(json={"models": []}))
        page.locator(".pane .problem").first.wait_for()
        check_access(page)
        if width > 1000:
            page.unroute("**/v1/models")
            page.context.set_offline(True)
            says(page, "#away", "does not respond")
            check_access(page)
            # What a phone does not show is dark here alone.
            page.click("#theme")
            check_access(page)
        # Nothing is cut off on a phone.
        assert page.evaluate("document.documentElement.scrollWidth") <= width


# The element with the focus, and the outline of what is seen of it.
FOCUSED = """
() => {
    const { activeElement: each } = document;
    const seen = each.matches('.hidden, .tabs input') ? each.labels[0] : each;
    const name = each.id || each.dataset.zoom || each.className || each.tagName;
    return [name, getComputedStyle(seen).outlineStyle];
}
"""


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(page):
    choose(page, DEMO / "scene-1.jpg", DEMO / "scene-2.jpg")
    page.fill("#tile", "2x2")
    page.locator("#tile").blur()
    page.locator("#overlap").wait_for()
    page.click("#compare")
    says(page, "#summary", "oth")
    page.get_by_role("link", name="API").focus()
    outlines = {}
    while "copy" not in outlines:
        page.keyboard.press("Tab")
        name, outline = page.evaluate(FOCUSED)
        outlines.setdefault(name, set()).add(outline)
    assert list(outlines) == [
        *("theme", "files", "camera", "compare", "SELECT", "out", "fit", "in", "SUMMARY"),
        *("BUTTON", "remove", "clear", "conf", "iou", "tile", "overlap", "shrink", "chip", "row"),
        *("pill", "INPUT", "copy"),
    ]
    assert set().union(*outlines.values()) == {"solid"}


def test_escape_closes_the_innermost(drawn, tmp_path):
    (tmp_path / "notes.jpg").write_text("this is no image")
    drawn.click("#compare")
    says(drawn, "#summary", "Both")
    drawn.set_input_files("#files", tmp_path / "notes.jpg")
    drawn.locator("#alert").wait_for()
    drawn.locator("#found .row").first.click()
    drawn.locator("summary").first.click()
    drawn.keyboard.press("Escape")
    assert drawn.locator("details[open]").count() == 0
    drawn.keyboard.press("Escape")
    assert drawn.locator("#found [aria-pressed=true]").count() == 0
    drawn.keyboard.press("Escape")
    assert not drawn.locator("#alert").is_visible()
    drawn.keyboard.press("Escape")
    assert drawn.locator(".pane").count() == 1
