"""The pictures: zoomed and moved, gone through and removed, and those to begin with."""

import pytest

from .conftest import DEMO, answered, choose, says

pytestmark = pytest.mark.browser

SCENES = [DEMO / "scene-1.jpg", DEMO / "scene-2.jpg"]
# What lies in the middle of the view, in shares of the picture; and how large the picture is.
SEEN = """
() => {
    const [view, picture] = ['.view', '.picture'].map((each) =>
        document.querySelector(each).getBoundingClientRect());
    return [
        (view.x + view.width / 2 - picture.x) / picture.width,
        (view.y + view.height / 2 - picture.y) / picture.height,
        picture.width / view.width,
    ];
}
"""

SCROLLED = """
new Promise((done) => {
    const look = () => (scrollY > 0 ? done() : requestAnimationFrame(look));
    look();
})
"""


def seen(page):
    return pytest.approx(page.evaluate(SEEN), abs=0.01)


def zoomed(page) -> str:
    return page.inner_text("[data-zoom=fit]")


def test_a_picture_is_zoomed_and_moved(drawn):
    box = drawn.locator(".view").bounding_box()
    left, top = box["x"] + box["width"] / 4, box["y"] + box["height"] / 4
    drawn.mouse.move(left, top)
    drawn.mouse.dblclick(left, top)
    # What was under the pointer is there still.
    assert seen(drawn) == [1 / 3, 1 / 3, 3]
    drawn.mouse.down()
    drawn.mouse.move(left - box["width"] / 4, top, steps=5)
    drawn.mouse.up()
    assert seen(drawn) == [5 / 12, 1 / 3, 3]
    # Outlines follow, and are no thicker.
    outline = drawn.locator(".outline").first
    width = float(outline.get_attribute("width"))
    side = outline.evaluate("(each) => each.parentNode.item.box.x2 - each.parentNode.item.box.x1")
    scale = 3 * box["width"] / drawn.locator(".view img").evaluate("(image) => image.naturalWidth")
    assert width == pytest.approx(side * scale, rel=1e-3)
    drawn.mouse.dblclick(left, top)
    assert seen(drawn) == [0.5, 0.5, 1]
    # The page scrolls where nothing can be smaller.
    drawn.mouse.wheel(0, 100)
    drawn.evaluate(SCROLLED)
    drawn.evaluate("scrollTo(0, 0)")
    drawn.mouse.wheel(0, -300)
    drawn.locator(".panes.zoomed").wait_for()
    assert drawn.evaluate("scrollY") == 0
    drawn.keyboard.press("0")
    assert zoomed(drawn) == "100 %"
    drawn.keyboard.press("+")
    drawn.get_by_role("button", name="Zoom in").click()
    assert seen(drawn) == [0.5, 0.5, 2.25]
    drawn.keyboard.press("Shift+ArrowLeft")
    assert seen(drawn) == [0.5 - 0.15 / 2.25, 0.5, 2.25]
    # Both pictures that are compared show the same part.
    drawn.click("#compare")
    says(drawn, "#summary", "Both")
    parts = drawn.locator(".picture").evaluate_all(
        "(all) => all.map((each) => getComputedStyle(each).left)"
    )
    assert parts[0] == parts[1] != "0px"


def test_two_fingers_zoom(browser, page_server):
    context = browser.new_context(has_touch=True, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(page_server.url)
    page.locator(".facts").filter(has_text="openvino").wait_for()
    choose(page, SCENES[0])
    box = page.locator(".view").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session = context.new_cdp_session(page)

    def touch(kind: str, *apart: float) -> None:
        points = [{"x": x + side, "y": y, "id": at} for at, side in enumerate(apart)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", -20, 20)
    for apart in (25, 30, 35, 40):
        touch("touchMove", -apart, apart)
    touch("touchEnd")
    assert page.evaluate("visualViewport.scale") == 1
    assert pytest.approx(page.evaluate(SEEN), abs=0.15) == [0.5, 0.5, 2]
    context.close()


def test_arrows_go_through_the_images_from_everywhere(page):
    choose(page, *SCENES, SCENES[0])
    page.locator("#strip button").nth(2).wait_for()

    def current() -> int:
        shown = page.locator("#strip button").evaluate_all(
            "(all) => all.map((each) => each.ariaCurrent)"
        )
        return shown.index("true")

    assert page.evaluate("document.activeElement.id") in ("", "files")
    page.keyboard.press("ArrowLeft")
    assert current() == 1
    page.locator("#found .row").first.focus()
    page.keyboard.press("ArrowRight")
    assert current() == 2
    for control in ("#conf", "#tile", ".pick select", "#languages input:checked"):
        page.locator(control).focus()
        page.keyboard.press("ArrowLeft")
        assert current() == 2, control
    page.locator("#compare").focus()
    page.keyboard.press("Control+ArrowLeft")
    assert current() == 2


def test_images_are_removed(page):
    choose(page, *SCENES)
    page.locator("#strip button").nth(1).wait_for()
    page.click("#remove")
    assert page.locator("#strip button").count() == 0
    assert page.locator(".view img").get_attribute("alt").startswith("scene-1.jpg")
    assert not page.locator("#clear").is_visible()
    answered(page)
    choose(page, SCENES[1])
    page.locator("#strip [aria-current=true]").focus()
    page.keyboard.press("Delete")
    assert page.locator(".view img").get_attribute("alt").startswith("scene-1.jpg")
    choose(page, SCENES[1])
    page.click("#clear")
    assert page.inner_text("#summary") == "Nothing yet."
    assert page.locator("#found .row, .chip, .outline, .timing:visible").count() == 0
    assert not page.locator("#saves").is_visible()
    assert page.inner_text("#code") == ""
    choose(page, SCENES[1])
    assert page.locator(".outline").count() > 5


def test_the_demo_model_has_examples(page):
    page.get_by_role("button", name="More digits").click()
    answered(page)
    assert page.locator(".outline").count() > 5
    assert page.inner_text("#save") == "Save scene-2.jpg"
    page.click("#remove")
    page.get_by_role("button", name="Digits", exact=True).click()
    answered(page)


def test_a_model_of_street_scenes_has_a_drawn_street(page):
    def with_buses(route):
        model = route.fetch().json()
        model["labels"] = ["stop sign", "bus"]
        route.fulfill(json=model)

    page.route("**/v1/models/digits", with_buses)
    page.reload()
    with page.expect_request("**/predict?*") as asked:
        page.get_by_role("button", name="A street").click()
    # Models read no SVG.
    assert asked.value.headers["content-type"] == "image/jpeg"
    page.locator("#saves").wait_for()
    image = page.locator(".view img")
    assert image.evaluate("({ naturalWidth, naturalHeight }) => [naturalWidth, naturalHeight]") == [
        960,
        640,
    ]
