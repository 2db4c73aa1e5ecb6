"""The page in a real browser, used as people use it."""

import base64
import re

import cv2
import httpx
import numpy as np
import pytest

from .conftest import DEMO, answered, choose, listed, pixels, says, until

pytestmark = pytest.mark.browser

TIMES = "\N{MULTIPLICATION SIGN}"
OUTLINES = """
() => [...document.querySelectorAll('.outline')].map((each) => {
    const { x, y, width, height } = each.getBBox();
    return [each.parentNode.item.score, x, y, x + width, y + height];
})
"""


def asked(server, image=DEMO / "scene-1.jpg", **options) -> list[dict]:
    answer = httpx.post(server.predict_url("digits"), content=image.read_bytes(), params=options)
    return answer.json()["images"][0]["detections"]


def told(detections) -> list[tuple[str, str]]:
    return [(each["class_name"], f"{each['score']:.2f}") for each in detections]


def slide(page, name: str, value: float, *, let_go: bool = False) -> None:
    page.locator(f"#{name}").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')) }",
        value,
    )
    if let_go:
        page.locator(f"#{name}").dispatch_event("change")


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
    assert drawn.inner_text("#note") == "For confidence 0.01 a new request is needed."
    with drawn.expect_response(re.compile(r"predict\?conf=0\.01&iou=0\.7$")):
        drawn.locator("#conf").dispatch_event("change")
    says(drawn, "#note", "^$")
    assert listed(drawn) == told(asked(page_server, conf=0.01))
    slide(drawn, "iou", 0.1)
    assert drawn.inner_text("#note") == "For IoU 0.10 a new request is needed."
    drawn.locator("#iou").dispatch_event("change")
    says(drawn, "#note", "^$")
    assert listed(drawn) == told(asked(page_server, conf=0.01, iou=0.1))


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


@pytest.mark.parametrize(
    ("name", "kind"), [("scene.jpg", "image/jpeg"), ("image.png", "image/png")]
)
def test_images_are_dropped_and_pasted(page, page_server, name, kind):
    data = (DEMO / "scene-2.jpg").read_bytes()
    page.evaluate(GIVEN, [name, kind, base64.b64encode(data).decode()])
    answered(page)
    assert listed(page) == told(asked(page_server, DEMO / "scene-2.jpg"))
    assert page.locator("#save").is_visible() == (name == "image.png")
    assert f"@{name} " in page.inner_text("#code")


def test_a_format_that_browsers_do_not_show(page, page_server, tmp_path):
    file = tmp_path / "scene.tiff"
    cv2.imwrite(str(file), cv2.imread(str(DEMO / "scene-1.jpg")))
    choose(page, file)
    assert listed(page) == told(asked(page_server, file))
    shown = page.locator(".view img").evaluate("(image) => image.naturalWidth")
    assert shown == cv2.imread(str(file)).shape[1]
    assert page.locator(".unshown").is_visible()
    # Nothing is drawn into it that the filters could not take away.
    slide(page, "conf", 1)
    box = page.locator(".view").bounding_box()
    assert np.ptp(pixels(page.screenshot(clip=box))[2:-2, 2:-2], axis=(0, 1)).max() <= 1


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


def test_a_model_that_becomes_ready_is_shown(page, page_server):
    page.route("**/v1/models", lambda route: route.fulfill(json={"models": []}), times=1)
    page.reload()
    says(page, "#alert", "No model that takes images is ready")
    page.set_input_files("#files", DEMO / "scene-1.jpg")
    answered(page)
    assert listed(page) == told(asked(page_server))
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


def test_a_broken_image_is_said_to_be_one(page, tmp_path):
    (tmp_path / "notes.jpg").write_text("this is no image")
    page.set_input_files("#files", tmp_path / "notes.jpg")
    page.locator("#alert").wait_for()
    said = page.inner_text("#alert")
    assert said.startswith("notes.jpg: not an image")
    assert "send JPEG, PNG" in said
    choose(page, DEMO / "scene-1.jpg")
    assert not page.locator("#alert").is_visible()


def test_two_models_side_by_side(drawn):
    found = listed(drawn)
    drawn.click("#compare")
    says(drawn, "#summary", "Both")
    assert drawn.inner_text("#summary") == f"Both find the same {len(found)}."
    right = drawn.get_by_label("Model on the right")
    assert right.input_value() == "digits, version 1"
    assert drawn.locator(".facts").all_inner_texts()[1].endswith("onnxruntime")
    assert drawn.locator(".outline").count() == 2 * len(found)
    drawn.click("#compare")
    assert listed(drawn) == found


def test_the_engine_card_and_the_stages(drawn, page_server):
    drawn.click("summary:has-text('Engine card')")
    card = drawn.inner_text(".card dl")
    about = httpx.get(f"{page_server.url}/v1/models/digits").json()
    for text in ("FP32", "openvino", about["card"]["device"], about["card"]["onnx_sha256"][:12]):
        assert text in card
    side = about["preprocess"]["width"]
    size = f"{side} {TIMES} {side}"
    assert f"letterboxed to {size}, RGB, / 255; {about['card']['preprocess_from']}" in card
    assert re.search(rf"Input\s+batch 1(?: to \d+)?, 3 {TIMES} {size} FP32", card)
    assert re.search(r"Version\s+2; also served: 1", card)
    assert re.search(r"within [\d.e-]+ px and [\d.e-]+ of score on \d+ images", card)
    stages = drawn.locator(".stages").get_attribute("aria-label")
    assert re.match(r"\d+ ms: .*infer [\d.]+ ms", stages)


def test_live_figures(drawn):
    says(drawn, "#p99", r"^(\d+ ms|[\d.]+ s)$")
    assert float(drawn.inner_text("#rate")) > 0
    assert drawn.inner_text("#queue") == "0"


def test_the_keyboard_lights_what_it_is_on(drawn):
    drawn.locator("#found .row").nth(2).focus()
    score = float(drawn.locator("#found .row b").nth(2).inner_text())
    lit = drawn.locator("svg.focused .object.lit .outline")
    assert lit.evaluate("(each) => each.parentNode.item.score") == pytest.approx(score, abs=0.005)
    drawn.keyboard.press("Enter")
    assert drawn.locator("#found .row").nth(2).get_attribute("aria-pressed") == "true"
    assert drawn.evaluate("document.activeElement.dataset.key") == "2"


def test_what_the_sliders_ask_is_asked_of_every_image_that_is_shown(drawn, page_server):
    choose(drawn, DEMO / "scene-2.jpg")
    drawn.locator("#found .row").nth(1).click()
    slide(drawn, "iou", 0.1, let_go=True)
    says(drawn, "#note", "^$")
    # The row that was pinned is of a former answer.
    drawn.mouse.move(5, 5)
    assert drawn.locator("svg.focused").count() == 0
    with drawn.expect_response(re.compile(r"predict\?conf=0\.05&iou=0\.1$")):
        drawn.locator("#strip button").first.click()
    says(drawn, "#note", "^$")
    assert listed(drawn) == told(asked(page_server, iou=0.1))
    with drawn.expect_response(re.compile(r"versions/1/predict\?conf=0\.05&iou=0\.1$")):
        drawn.get_by_label("Model", exact=True).select_option("digits, version 1")


def test_many_images_are_asked_about_four_at_a_time(page):
    held = []
    page.route("**/predict?*", lambda route: held.append(route))
    page.set_input_files("#files", [DEMO / "scene-1.jpg"] * 7)
    page.locator("#strip button").nth(6).wait_for()
    for left in (7, 6, 5, 4, 3, 2, 1):
        while len(held) < min(left, 4):
            page.wait_for_timeout(10)
        assert len(held) == min(left, 4)
        held.pop(0).continue_()
    answered(page)


def test_tiles_are_asked_for_and_stand_in_the_code(drawn, page_server):
    with drawn.expect_response(re.compile(r"predict\?conf=0\.25&iou=0\.7&tile=2x2&overlap=0\.2$")):
        drawn.fill("#tile", "2x2")
        drawn.locator("#tile").blur()
    says(drawn, "#note", "^$")
    scene = DEMO / "scene-1.jpg"
    assert listed(drawn) == told(asked(page_server, scene, tile="2x2"))
    assert "predict?tile=2x2'" in drawn.inner_text("#code")
    slide(drawn, "overlap", 0.4)
    assert drawn.inner_text("#note") == "For an overlap of 0.40 a new request is needed."
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


def test_models_without_tiles_are_asked_without(page):
    def of_text(route):
        listing = route.fetch().json()
        for model in listing["models"]:
            model["task"] = "text"
        route.fulfill(json=listing)

    page.route("**/v1/models", of_text)
    page.reload()
    page.locator("#tiling").wait_for(state="hidden")
    with page.expect_response(re.compile(r"predict\?conf=0\.05$")):
        page.set_input_files("#files", DEMO / "scene-1.jpg")
    answered(page)
