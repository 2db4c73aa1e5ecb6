"""The page in a real browser: images in, and what is found on them out."""

import base64
import re

import cv2
import numpy as np
import pytest

from .conftest import (
    DEMO,
    answered,
    asked,
    choose,
    listed,
    opened,
    pixels,
    says,
    slide,
    told,
    until,
)

pytestmark = pytest.mark.browser

SCENES = [DEMO / "scene-1.jpg", DEMO / "scene-2.jpg"]
OUTLINES = """
() => [...document.querySelectorAll('.outline')].map((each) => {
    const { x, y, width, height } = each.getBBox();
    return [each.parentNode.item.score, x, y, x + width, y + height];
})
"""


@pytest.mark.smoke
def test_boxes_are_drawn_where_the_server_says(drawn, page_server):
    detections = asked(page_server)
    image = drawn.locator(".view img").bounding_box()
    layer = drawn.locator(".view svg").bounding_box()
    assert image == layer
    size = cv2.imread(str(DEMO / "scene-1.jpg")).shape
    scale = image["width"] / size[1]
    assert image["height"] / size[0] == pytest.approx(scale, abs=1e-3)
    outlines = {row[0]: row[1:] for row in drawn.evaluate(OUTLINES)}
    assert len(outlines) == len(detections) == drawn.locator(".tag").count() > 5
    screen = pixels(drawn.screenshot())
    for each in detections:
        corners = np.array([each["box"][name] for name in ("x1", "y1", "x2", "y2")]) * scale
        assert outlines[each["score"]] == pytest.approx(corners.tolist(), abs=1e-3)
        # The line itself: most of the pixels of the lower edge have the colour of the class. The
        # image may lie between two rows of the screen.
        left, _, right, bottom = corners + [image["x"], image["y"]] * 2
        rows = slice(round(bottom) - 1, round(bottom) + 2)
        edge = screen[rows, round(left) + 2 : round(right) - 2]
        colour = np.array(drawn.evaluate(COLOUR, each["class_id"]))
        assert (np.abs(edge - colour).max(axis=2) < 60).mean(axis=1).max() > 0.6


COLOUR = "(id) => import('/page/colours.js').then(({ colour }) => colour(id))"


def test_sliders_filter_what_was_answered_and_ask_for_the_rest(drawn, page_server):
    sent = []
    drawn.on("request", lambda request: sent.append(request.url))
    assert listed(drawn) == told(asked(page_server))
    for conf in (0.05, 0.5, 0.9):
        slide(drawn, "conf", conf, let_go=True)
        assert listed(drawn) == told(asked(page_server, conf=conf))
    assert not any("predict" in url for url in sent)
    slide(drawn, "conf", 0.01)
    assert drawn.inner_text("#note") == "Send a new request for confidence 0.01."
    with drawn.expect_response(re.compile(r"predict\?conf=0\.01&iou=0\.7$")):
        drawn.locator("#conf").dispatch_event("change")
    says(drawn, "#note", "^$")
    assert listed(drawn) == told(asked(page_server, conf=0.01))
    slide(drawn, "iou", 0.1)
    assert drawn.inner_text("#note") == "Send a new request for IoU 0.10."
    drawn.locator("#iou").dispatch_event("change")
    says(drawn, "#note", "^$")
    assert listed(drawn) == told(asked(page_server, conf=0.01, iou=0.1))
    # Every image that is shown is asked for what is set now, and a row of a former answer is no
    # more lit.
    drawn.locator("#found .row").nth(1).click()
    with drawn.expect_response(re.compile(r"predict\?conf=0\.01&iou=0\.1$")):
        drawn.set_input_files("#files", SCENES[1])
    says(drawn, "#summary", r"\d")
    drawn.mouse.move(5, 5)
    assert drawn.locator("svg.focused").count() == 0


def test_results_are_read_aloud_once_they_stay(drawn):
    says(drawn, "#said", r"^\d+ objects: ")
    drawn.evaluate("""() => {
        const said = document.getElementById('said');
        window.heard = [];
        new MutationObserver(() => heard.push(said.textContent)).observe(said, { childList: true });
    }""")
    for conf in (0.3, 0.6, 0.9, 1):
        slide(drawn, "conf", conf)
    says(drawn, "#said", "^Nothing found")
    assert len(drawn.evaluate("heard")) == 1


def test_chips_count_classes_and_choose_them(drawn, page_server):
    detections = asked(page_server)
    names = [each["class_name"] for each in detections]
    shown = dict(text.split() for text in drawn.locator(".chip").all_inner_texts())
    assert shown == {name: str(names.count(name)) for name in names}
    drawn.locator(".chip").first.click()
    chosen = drawn.locator(".chip[aria-pressed=true]")
    assert {name for name, _ in listed(drawn)} == {chosen.inner_text().split()[0]}
    assert drawn.locator(".chip").count() == len(shown)
    chosen.click()
    assert listed(drawn) == told(detections)


def test_rows_light_their_objects(drawn):
    row = drawn.locator("#found .row").nth(2)
    row.focus()
    score = float(row.locator("b").inner_text())
    lit = drawn.locator("svg.focused .object.lit .outline")
    assert lit.evaluate("(each) => each.parentNode.item.score") == pytest.approx(score, abs=0.005)
    drawn.keyboard.press("Enter")
    assert row.get_attribute("aria-pressed") == "true"
    assert drawn.evaluate("document.activeElement.dataset.key") == "2"


GIVEN = """
([name, type, data]) => {
    const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([bytes], name, { type }));
    const init = { bubbles: true, cancelable: true };
    document.body.dispatchEvent(name === 'image.png'
        ? new ClipboardEvent('paste', { ...init, clipboardData: dataTransfer })
        : new DragEvent('drop', { ...init, dataTransfer }));
}
"""


def test_images_are_dropped_and_pasted(page, page_server):
    for name, kind, scene in (
        ("scene.jpg", "image/jpeg", SCENES[1]),
        ("image.png", "image/png", SCENES[0]),
    ):
        page.evaluate(GIVEN, [name, kind, base64.b64encode(scene.read_bytes()).decode()])
        says(page, "#code", f"@{name} ")
        answered(page)
        assert listed(page) == told(asked(page_server, scene))
        # What was pasted is nowhere else.
        assert page.locator("#save").is_visible() == (name == "image.png")


def test_files_that_are_not_shown_or_are_no_images(page, page_server, tmp_path):
    file = tmp_path / "scene.tiff"
    cv2.imwrite(str(file), cv2.imread(str(SCENES[0])))
    choose(page, file)
    assert listed(page) == told(asked(page_server, file))
    shown = page.locator(".view img").evaluate("(image) => image.naturalWidth")
    assert shown == cv2.imread(str(file)).shape[1]
    assert page.locator(".unshown").is_visible()
    # Nothing is drawn into it that the filters could not take away.
    slide(page, "conf", 1)
    box = page.locator(".view").bounding_box()
    assert np.ptp(pixels(page.screenshot(clip=box))[2:-2, 2:-2], axis=(0, 1)).max() <= 1
    slide(page, "conf", 0.25, let_go=True)
    half, texts = tmp_path / "half.jpg", [tmp_path / "one.tiff", tmp_path / "two.jpg"]
    # Browsers show what there is of it, and the server refuses it.
    half.write_bytes(SCENES[0].read_bytes()[:9000])
    for text in texts:
        text.write_text("no image")
    page.set_input_files("#files", [texts[0], half, texts[1], SCENES[1]])
    says(page, "#alert", r"one\.tiff: .+\ntwo\.jpg: ")
    failed = page.locator("#strip .failed")
    failed.wait_for()
    assert failed.get_attribute("title").startswith("half.jpg: ")
    # They are not among those that are saved.
    page.locator("#saves button", has_text="CSV of all 2").wait_for()
    failed.click()
    says(page, ".pane .problem", "the image is damaged")
    choose(page, SCENES[0])
    assert not page.locator("#alert").is_visible()


def test_tiles_are_asked_for_and_stand_in_the_code(drawn, page_server):
    with drawn.expect_response(re.compile(r"predict\?conf=0\.25&iou=0\.7&tile=2x2&overlap=0\.2$")):
        drawn.fill("#tile", "2x2")
        drawn.locator("#tile").blur()
    says(drawn, "#note", "^$")
    scene = DEMO / "scene-1.jpg"
    assert listed(drawn) == told(asked(page_server, scene, tile="2x2"))
    assert "predict?tile=2x2'" in drawn.inner_text("#code")
    slide(drawn, "overlap", 0.4)
    assert drawn.inner_text("#note") == "Send a new request for an overlap of 0.40."
    drawn.locator("#overlap").dispatch_event("change")
    says(drawn, "#note", "^$")
    assert listed(drawn) == told(asked(page_server, scene, tile="2x2", overlap=0.4))
    # What is found on tiles depends on the confidence, so it is asked for as it is set.
    slide(drawn, "conf", 0.5, let_go=True)
    says(drawn, "#note", "^$")
    assert listed(drawn) == told(asked(page_server, scene, tile="2x2", overlap=0.4, conf=0.5))
    drawn.get_by_label("Python").check(force=True)
    assert 'conf=0.5, tile="2x2", overlap=0.4)' in drawn.inner_text("#code")
    drawn.fill("#tile", "two")
    drawn.locator("#tile").blur()
    assert not drawn.locator("#tile").evaluate("(each) => each.validity.valid")
    assert 'tile="2x2"' in drawn.inner_text("#code")
    drawn.fill("#tile", "")
    drawn.locator("#tile").blur()
    says(drawn, "#note", "^$")
    assert listed(drawn) == told(asked(page_server, scene, conf=0.5))


def test_images_are_gone_through_and_removed(browser, page_server):
    inside = """(current) => {
        const [outer, inner] = [current.closest("#strip"), current].map((each) =>
            each.getBoundingClientRect());
        return inner.width > 20 && inner.left >= outer.left && inner.right <= outer.right;
    }"""
    with opened(browser, page_server, width=390) as page:
        strip = page.locator("#strip button")
        current = page.locator("#strip [aria-current=true]")

        def place() -> int:
            shown = strip.evaluate_all("(all) => all.map((each) => each.ariaCurrent)")
            return shown.index("true")

        page.set_input_files("#files", SCENES * 5)
        strip.nth(9).wait_for()
        answered(page)
        # The current one is in view until the user scrolls.
        assert place() == 9
        assert current.evaluate(inside)
        page.locator("#strip").evaluate("(strip) => { strip.scrollLeft = 0; }")
        page.locator("#conf").fill("0.5")
        assert page.locator("#strip").evaluate("(strip) => strip.scrollLeft") == 0
        strip.first.click()
        assert current.evaluate(inside)
        # Arrows go through them from everywhere, but for controls in which they mean another thing.
        page.locator("#found .row").first.focus()
        page.keyboard.press("ArrowRight")
        assert place() == 1
        for control in ("#conf", "#tile", ".pick select", "#languages input:checked"):
            page.locator(control).focus()
            page.keyboard.press("ArrowLeft")
            assert place() == 1, control
        current.focus()
        for key, at in (("ArrowLeft", 0), ("ArrowLeft", 0), ("End", 9), ("Home", 0)):
            page.keyboard.press(key)
            assert place() == at
            assert page.evaluate("document.activeElement.ariaCurrent") == "true"
        assert page.locator("#strip [tabindex='0']").count() == 1
        page.keyboard.press("Delete")
        assert (strip.count(), place()) == (9, 0)
        assert page.locator(".view img").get_attribute("alt").startswith("scene-2.jpg")
        page.click("#remove")
        assert strip.count() == 8
        page.click("#clear")
        assert page.locator("#strip button, #found .row, .chip, .outline").count() == 0
        assert page.locator("#saves:visible, #clear:visible, .timing:visible").count() == 0
        assert page.inner_text("#code") == ""
        choose(page, SCENES[1])
        assert page.locator(".outline").count() > 5


def test_examples_are_at_hand(page):
    page.get_by_role("button", name="More digits").click()
    answered(page)
    assert page.locator(".outline").count() > 5
    assert page.inner_text("#save") == "Save scene-2.jpg"
    # Models read no SVG.
    street = """() => import('/page/examples.js').then(({ fetchExample }) =>
        fetchExample('street.svg')).then((file) =>
        createImageBitmap(file).then(({ width, height }) => [file.type, width, height]))"""
    assert page.evaluate(street) == ["image/jpeg", 960, 640]


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


def test_without_websockets_the_camera_waits_while_the_server_is_busy(page):
    page.evaluate("() => { WebSocket = undefined; }")
    busy = {"error": {"code": "queue_full", "message": "the queue is full"}}
    page.route(
        "**/predict?*",
        lambda route: route.fulfill(status=429, headers={"Retry-After": "1"}, json=busy),
        times=1,
    )
    page.click("#camera")
    says(page, "#alert", "the queue is full")
    answered(page)
    assert not page.locator("#alert").is_visible()


def test_the_camera(page, page_server):
    lines, posts = [], []
    page.on("websocket", lambda line: lines.append(line))
    page.on("request", lambda request: posts.append(request) if request.method == "POST" else None)
    page.click("#camera")
    answered(page)
    # Its frames go over one connection, and over another one for what is asked otherwise.
    assert ["/v1/models/digits/stream?" in line.url for line in lines] == [True]
    assert posts == []
    page.fill("#tile", "320")
    page.press("#tile", "Enter")
    until(page, lambda: len(lines) == 2 and lines[0].is_closed())
    assert "tile=320" in lines[1].url
    page.fill("#tile", "")
    page.press("#tile", "Enter")
    until(page, lambda: len(lines) == 3)
    answered(page)
    assert {name for name, _ in listed(page)} == {name for name, _ in told(asked(page_server))}
    page.click("#camera[aria-pressed=true]")
    page.locator("#camera[aria-pressed=false]").wait_for()
    answered(page)
    assert page.inner_text("#save") == "Save camera.jpg"
