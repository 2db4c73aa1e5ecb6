"""The models that the page offers, compares and describes, to each kind of visitor."""

import re
import shutil

import httpx
import pytest
from tests.keyed import key
from tests.keyed import until as wait_for
from tests.serving import start_server

from .conftest import DEMO, answered, asked, choose, listed, opened, says, told

pytestmark = pytest.mark.browser

MODEL, TIMES = "Model", "\N{MULTIPLICATION SIGN}"


@pytest.fixture(scope="module")
def explicit(demo_versions, tmp_path_factory):
    """A server that loads what it is told to load."""
    folder = tmp_path_factory.mktemp("explicit")
    shutil.copytree(demo_versions, folder / "repository")
    other = shutil.copytree(folder / "repository" / "digits", folder / "repository" / "other")
    config = other / "config.pbtxt"
    config.write_text(config.read_text().replace("digits", "other"))
    flags = ["--model-control-mode=explicit", "--load-model=digits"]
    server = start_server(folder / "repository", folder, flags)
    server.repository = folder / "repository"
    yield server
    assert server.stop() == 0


def control(server, model: str, action: str) -> None:
    url = f"{server.url}/v2/repository/models/{model}/{action}"
    assert httpx.post(url, json={}).status_code == 200


def offered(page, label: str = MODEL) -> list[str]:
    return page.get_by_label(label, exact=True).locator("option").all_inner_texts()


def test_models_come_and_go_and_the_choice_stays(browser, explicit):
    with opened(browser, explicit) as page:
        choose(page, DEMO / "scene-1.jpg")
        found = listed(page)
        assert offered(page) == ["digits", "digits, version 1 (load it beside)"]
        control(explicit, "other", "load")
        page.locator("option:enabled", has_text="other").first.wait_for(state="attached")
        picker = page.get_by_label(MODEL, exact=True)
        assert picker.input_value() == "digits"
        assert "other" in offered(page)
        picker.select_option("other")
        answered(page)
        control(explicit, "digits", "unload")
        page.locator("option:disabled", has_text="digits").wait_for(state="attached")
        assert picker.input_value() == "other"
        assert not page.locator(".pane .problem").is_visible()
        # The one that is picked goes away, and comes back.
        control(explicit, "other", "unload")
        says(page, ".pane .problem", "^other is .*: pick another model, or wait")
        assert picker.evaluate("(each) => each.selectedOptions[0].text").startswith("other (")
        assert listed(page) == found
        control(explicit, "other", "load")
        page.locator(".pane .problem").wait_for(state="hidden")
        assert picker.input_value() == "other"


def test_a_new_version_is_asked_by_itself(browser, explicit):
    folder = explicit.repository / "digits"
    shutil.move(folder / "2", explicit.repository.parent / "later")
    control(explicit, "digits", "load")
    with opened(browser, explicit, ready="onnxruntime") as page:
        choose(page, DEMO / "scene-1.jpg")
        shutil.move(explicit.repository.parent / "later", folder / "2")
        with page.expect_request(lambda request: "digits/predict" in request.url):
            control(explicit, "digits", "load")
        page.locator(".facts").filter(has_text="openvino").wait_for()


def test_a_version_is_loaded_beside_the_current_one_to_compare_them(
    browser, demo_versions, tmp_path
):
    shutil.copytree(demo_versions, tmp_path / "repository")
    server = start_server(tmp_path / "repository", tmp_path)
    url = f"{server.url}/v1/models/digits"
    try:
        with opened(browser, server) as page:
            choose(page, DEMO / "scene-1.jpg")
            compare = page.locator("#compare:enabled")
            compare.wait_for()
            assert compare.get_attribute("title") == "Load version 1 next to this one"
            compare.click()
            page.locator(".facts").nth(1).filter(has_text="onnxruntime").wait_for()

            says(page, "#summary", "Both find the same|in both")
            assert offered(page) == ["digits", "digits, version 1"]
            assert httpx.get(url).json()["version"] == "2"
            assert httpx.get(f"{url}/versions/1").json()["ready"]
            page.locator(".card summary").nth(1).click()
            page.get_by_role("button", name="Unload version 1").click()
            page.locator(".pane").nth(1).wait_for(state="detached")
            assert offered(page) == ["digits", "digits, version 1 (load it beside)"]
        assert httpx.get(f"{url}/versions/1").status_code == 404
    finally:
        assert server.stop() == 0


def test_two_models_side_by_side(drawn):
    """And the last choice is the first of the next visit."""
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
    drawn.get_by_label(MODEL, exact=True).select_option("digits, version 1")
    drawn.reload()
    drawn.locator(".facts").filter(has_text="onnxruntime").wait_for()
    assert drawn.get_by_label(MODEL, exact=True).input_value() == "digits, version 1"


def test_the_engine_card_live_figures_and_a_candidate(drawn, page_server):
    says(drawn, "#p99", r"^(\d+ ms|[\d.]+ s)$")
    assert float(drawn.inner_text("#rate")) > 0
    assert drawn.inner_text("#queue") == "0"
    stages = drawn.locator(".stages").get_attribute("aria-label")
    assert re.match(r"\d+ ms: .*infer [\d.]+ ms", stages)
    drawn.click("summary:has-text('Engine card')")
    card = drawn.inner_text(".card dl")
    about = httpx.get(f"{page_server.url}/v1/models/digits").json()
    for text in ("FP32", "openvino", about["card"]["device"], about["card"]["onnx_sha256"][:12]):
        assert text in card
    side = f"{about['preprocess']['width']} {TIMES} {about['preprocess']['width']}"
    assert f"letterboxed to {side}" in card
    assert re.search(rf"Input\s+batch 1(?: to \d+)?, 3 {TIMES} {side} FP32", card)
    assert re.search(r"Version\s+2; also served: 1", card)
    assert drawn.locator(".card a").count() == 0
    shadow = f"{page_server.url}/v1/models/digits/shadow"
    httpx.put(shadow, json={"version": 1, "share": 1, "images": 2}).raise_for_status()
    wait_for(lambda: httpx.get(shadow).json()["state"] == "running")
    for scene in (1, 2):
        choose(drawn, DEMO / f"scene-{scene}.jpg")
    wait_for(lambda: httpx.get(shadow).json()["state"] == "finished")
    # Each look at it asks again.
    for _ in range(4):
        drawn.click("summary:has-text('Engine card')")
    says(drawn, ".card dd a", "version 1: finished")
    assert drawn.locator(".card a").count() == 1
    report = drawn.locator(".card dd a").get_attribute("href")
    assert httpx.get(report).text.startswith("# digits: version 1 compared with version 2")


def test_a_model_that_becomes_ready_is_shown(page, page_server):
    page.route("**/v1/models", lambda route: route.fulfill(json={"models": []}), times=1)
    page.reload()
    says(page, "#alert", "No model for images is ready")
    page.set_input_files("#files", DEMO / "scene-1.jpg")
    answered(page)
    assert listed(page) == told(asked(page_server))
    assert not page.locator("#alert").is_visible()


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


@pytest.fixture(scope="module")
def keyed(demo_versions, tmp_path_factory):
    """A server with keys that may predict, and may load versions."""
    folder = tmp_path_factory.mktemp("keys")
    shutil.copytree(demo_versions, folder / "repository")
    keys = folder / "keys.json"
    tokens = [key("add", "asking", "--keys", keys)]
    tokens.append(key("add", "ruling", "--keys", keys, "--scope", "predict,control"))
    server = start_server(folder / "repository", folder, [f"--keys={keys}"])
    yield server, tokens
    assert server.stop() == 0


REFUSED = """
(url) => import('/page/fovea.js').then(({ Fovea }) =>
    new Fovea(url, { apiKey: 'wrong' }).connect('digits')
        .catch(({ status, code }) => [status, code]))
"""


def test_the_page_asks_for_a_key_until_it_is_right_and_keeps_it(browser, keyed):
    server, [token, _] = keyed
    prompts, given = [], ["fov_wrong", token]
    page = browser.new_page()
    page.on("dialog", lambda dialog: (prompts.append(dialog), dialog.accept(given.pop(0))))
    page.goto(server.url)
    choose(page, DEMO / "scene-1.jpg")
    assert listed(page)
    assert token not in page.inner_text("#code")
    page.reload()
    choose(page, DEMO / "scene-1.jpg")
    assert len(prompts) == 2
    # Pages send the key as the first message of a connection.
    with page.expect_websocket(lambda line: "/stream?" in line.url):
        page.click("#camera")
    page.locator("#strip button, .view img[alt^=camera]").first.wait_for()
    assert page.evaluate(REFUSED, server.url) == [401, "unauthenticated"]
    page.close()


def test_who_gives_no_key_is_asked_once(browser, keyed):
    prompts = []
    page = browser.new_page()
    page.on("dialog", lambda dialog: (prompts.append(dialog), dialog.dismiss()))
    page.goto(keyed[0].url)
    says(page, "#alert", "requires a key")
    # It looks after the models every three seconds.
    with page.expect_response("**/v1/models"):
        pass
    assert len(prompts) == 1
    page.close()


def test_who_may_not_load_versions_is_offered_none(browser, keyed):
    server, tokens = keyed
    for token, versions in zip(tokens, (0, 1), strict=True):
        page = browser.new_page()
        page.add_init_script(f"sessionStorage.setItem('fovea-key', '{token}')")
        page.goto(server.url)
        page.locator(".facts").filter(has_text="openvino").wait_for()
        assert page.locator("option", has_text="load it beside").count() == versions
        assert page.locator("#compare").is_enabled() == bool(versions)
        page.close()


def test_a_visitor_of_a_server_without_keys_predicts_by_name(browser, demo_server):
    page = browser.new_page(extra_http_headers={"x-forwarded-for": "192.0.2.7"})
    errors: list[object] = []
    page.on("pageerror", lambda error: errors.append(error))
    page.set_default_timeout(120_000)
    page.goto(demo_server.url)
    says(page, "#visitor", "only its own machine may list the models")
    assert not page.locator("#alert").is_visible()
    page.fill("#visitor-model", "nobody")
    page.click("#visitor button")
    says(page, "#alert", "there is no model 'nobody'")
    page.fill("#visitor-model", "digits")
    page.click("#visitor button")
    page.locator(".pane").wait_for()
    choose(page, DEMO / "scene-1.jpg")
    assert listed(page)
    assert not page.locator("#alert").is_visible()
    page.close()
    assert errors == []


def test_the_page_says_that_the_server_is_away_and_goes_on_when_it_is_back(browser, explicit):
    with opened(browser, explicit) as page:
        assert explicit.stop() == 0
        page.set_input_files("#files", DEMO / "scene-1.jpg")
        says(page, ".pane .problem", "does not respond")
        says(page, "#away", "The server does not respond. This page continues")
        ports = (explicit.port, explicit.grpc_port, explicit.metrics_port)
        folder = explicit.repository.parent
        flags = ["--model-control-mode=explicit", "--load-model=digits"]
        again = start_server(explicit.repository, folder, flags, ports=ports)
        explicit.process = again.process
        # What could not be answered is asked again.
        answered(page)
        assert not page.locator("#away").is_visible()
        assert not page.locator(".pane .problem").is_visible()
