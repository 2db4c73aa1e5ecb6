"""axe-core finds nothing wrong with the page in any state, and the keyboard reaches all of it."""

from importlib.resources import files

import pytest

from .conftest import DEMO, answered, choose, opened, says

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def axe() -> str:
    package = pytest.importorskip(
        "axe_playwright_python",
        reason="axe-playwright-python is not installed: `make test` installs it",
    )
    return (files(package) / "axe.min.js").read_text()


SETTLED = """
Promise.all(document.getAnimations().filter((each) => each.animationName === 'appear')
    .map((each) => each.finished.then(() => null)))
"""


# Colours depend on the scheme, and what is shown on the width.
@pytest.mark.parametrize(("scheme", "width"), [("light", 1300), ("dark", 390)])
def test_axe_finds_nothing(browser, page_server, axe, scheme, width, tmp_path):
    (tmp_path / "notes.jpg").write_text("this is no image")

    def check(state: str) -> None:
        result = page.evaluate("axe.run()")
        found = [(each["id"], each["nodes"][0]["html"]) for each in result["violations"]]
        assert found == [], state
        assert len(result["passes"]) > 30

    with opened(browser, page_server, width=width, color_scheme=scheme) as page:
        page.evaluate(axe)
        check("empty")
        page.route("**/predict?*", lambda route: route.abort(), times=1)
        page.set_input_files("#files", DEMO / "scene-2.jpg")
        page.locator(".again").wait_for()
        check("failed")
        page.click("#remove")
        held = []
        page.route("**/predict?*", lambda route: held.append(route), times=1)
        page.set_input_files("#files", DEMO / "scene-2.jpg")
        page.locator(".sending").wait_for()
        page.evaluate(SETTLED)
        check("sending")
        held[0].continue_()
        choose(page, DEMO / "scene-1.jpg", DEMO / "scene-2.jpg")
        page.click("summary:has-text('Engine card')")
        page.click("[data-zoom=in]")
        page.get_by_role("button", name="Boxes").click()
        page.get_by_label("Answer").check(force=True)
        check("answered, zoomed, and as JSON")
        page.fill("#tile", "2x2")
        page.locator("#tile").blur()
        page.locator("#overlap").wait_for()
        check("tiles")
        page.click("#compare")
        says(page, "#summary", "Both")
        page.locator("#found .row").first.click()
        page.set_input_files("#files", tmp_path / "notes.jpg")
        page.locator("#alert").wait_for()
        check("comparing, and an error")
        page.route("**/v1/models", lambda route: route.fulfill(json={"models": []}))
        page.locator(".pane .problem").first.wait_for()
        check("without a model")
        if width > 1000:
            page.unroute("**/v1/models")
            page.context.set_offline(True)
            says(page, "#away", "does not answer")
            check("without the server")
            # What a phone does not show is dark here alone.
            page.click("#theme")
            check("without the server, dark")
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


def test_arrows_choose_among_the_images(page):
    choose(page, DEMO / "scene-1.jpg", DEMO / "scene-2.jpg")
    page.set_input_files("#files", DEMO / "scene-1.jpg")
    page.locator("#strip button").nth(2).wait_for()
    current = page.locator("#strip [aria-current=true]")
    current.focus()
    for key, place in (("ArrowLeft", 1), ("Home", 0), ("ArrowLeft", 0), ("End", 2)):
        page.keyboard.press(key)
        assert page.locator("#strip button").nth(place).get_attribute("aria-current") == "true"
        assert page.evaluate("document.activeElement.ariaCurrent") == "true"
    answered(page)
    assert page.locator("#strip [tabindex='0']").count() == 1


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


def test_results_are_read_aloud_once_they_stay(drawn):
    says(drawn, "#said", r"^\d+ objects: ")
    drawn.evaluate("""() => {
        const said = document.getElementById('said');
        window.heard = [];
        new MutationObserver(() => heard.push(said.textContent)).observe(said, { childList: true });
        const conf = document.getElementById('conf');
        for (let value = 0.3; value < 0.99; value += 0.01) {
            conf.value = value;
            conf.dispatchEvent(new Event('input'));
        }
        conf.value = 1;
        conf.dispatchEvent(new Event('input'));
    }""")
    says(drawn, "#said", "^Nothing found")
    assert len(drawn.evaluate("heard")) == 1


def test_the_current_thumbnail_is_in_view_until_the_user_scrolls(browser, page_server):
    inside = """(current) => {
        const [outer, inner] = [current.closest("#strip"), current].map((each) =>
            each.getBoundingClientRect());
        return inner.width > 20 && inner.left >= outer.left && inner.right <= outer.right;
    }"""
    with opened(browser, page_server, width=390) as page:
        page.set_input_files("#files", [DEMO / "scene-1.jpg", DEMO / "scene-2.jpg"] * 5)
        page.locator("#strip button").nth(9).wait_for()
        answered(page)
        current = page.locator("#strip [aria-current=true]")
        assert current.locator("img").get_attribute("alt") == "scene-2.jpg"
        assert current.evaluate(inside)
        assert page.evaluate("scrollY") == 0
        page.locator("#strip").evaluate("(strip) => { strip.scrollLeft = 0; }")
        page.locator("#conf").fill("0.5")
        assert page.locator("#strip").evaluate("(strip) => strip.scrollLeft") == 0
        page.locator("#strip button").first.click()
        assert current.evaluate(inside)
