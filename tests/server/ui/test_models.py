"""The page follows the models while it is open, and compares two."""

import shutil

import httpx
import pytest
from tests.keyed import key
from tests.serving import start_server

from .conftest import DEMO, answered, choose, listed, opened, says

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
            assert compare.get_attribute("title") == "Loads version 1 beside it"
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


def test_who_may_not_load_versions_is_offered_none(browser, demo_versions, tmp_path):
    shutil.copytree(demo_versions, tmp_path / "repository")
    keys = tmp_path / "keys.json"
    tokens = [key("add", "asking", "--keys", keys)]
    tokens.append(key("add", "ruling", "--keys", keys, "--scope", "predict,control"))
    server = start_server(tmp_path / "repository", tmp_path, [f"--keys={keys}"])
    try:
        for token, versions in zip(tokens, (0, 1), strict=True):
            page = browser.new_page()
            page.on("dialog", lambda dialog, token=token: dialog.accept(token))
            page.goto(server.url)
            page.locator(".facts").filter(has_text="openvino").wait_for()
            assert page.locator("option", has_text="load it beside").count() == versions
            assert page.locator("#compare").is_enabled() == bool(versions)
            page.close()
    finally:
        assert server.stop() == 0


def test_a_visitor_of_a_server_without_keys_predicts_by_name(browser, demo_server):
    page = browser.new_page(extra_http_headers={"x-forwarded-for": "192.0.2.7"})
    errors: list[object] = []
    page.on("pageerror", lambda error: errors.append(error))
    page.set_default_timeout(120_000)
    page.goto(demo_server.url)
    says(page, "#visitor", "started without keys: only its own machine may list its models")
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


CHOICES = """
(models) => import('/page/choices.js').then(({ choicesOf, rivalOf }) => {
    const all = choicesOf(models);
    const rivals = all.map((each) => rivalOf(each, all)?.id ?? null);
    return [all.map(({ group, id }) => [group, id]), rivals];
})
"""


def test_models_are_grouped_by_their_task(page):
    def model(name, task, *versions, ready=True):
        listed = [{"version": each, "ready": True} for each in versions or ("1",)]
        return {
            "name": name,
            "task": task,
            "ready": ready,
            "accepts_images": task != "tensors",
            "version": listed[-1]["version"],
            "versions": listed,
            "label_count": 3,
        }

    models = [
        model("a", "depth"),
        model("b", "tensors"),
        model("c", "detect", "1", "2"),
        model("d", "segment"),
        model("e", None, ready=False),
        model("f", "detect"),
    ]
    groups, rivals = page.evaluate(CHOICES, models)
    assert groups == [
        ["Objects", "c"],
        ["Objects", "c, version 1"],
        ["Objects", "f"],
        ["Objects with masks", "d"],
        ["Depth", "a"],
        ["Not available", "b"],
        ["Not available", "e"],
    ]
    # To compare with: another version, else the same task, else anything.
    assert rivals[:5] == ["c, version 1", "c", "c", "c", "c"]
    assert page.locator("optgroup").first.get_attribute("label") == "Objects"


def test_the_last_choice_is_the_first_of_the_next_visit(page):
    page.get_by_label(MODEL, exact=True).select_option("digits, version 1")
    page.reload()
    page.locator(".facts").filter(has_text="onnxruntime").wait_for()
    assert page.get_by_label(MODEL, exact=True).input_value() == "digits, version 1"


def test_the_page_says_that_the_server_is_away_and_goes_on_when_it_is_back(browser, explicit):
    with opened(browser, explicit) as page:
        assert explicit.stop() == 0
        page.set_input_files("#files", DEMO / "scene-1.jpg")
        says(page, ".pane .problem", "does not answer")
        says(page, "#away", "The server does not answer. This page goes on by itself")
        ports = (explicit.port, explicit.grpc_port, explicit.metrics_port)
        folder = explicit.repository.parent
        flags = ["--model-control-mode=explicit", "--load-model=digits"]
        again = start_server(explicit.repository, folder, flags, ports=ports)
        explicit.process = again.process
        # What could not be answered is asked again.
        answered(page)
        assert not page.locator("#away").is_visible()
        assert not page.locator(".pane .problem").is_visible()


def answer(**found: object) -> dict[str, object]:
    timing = dict.fromkeys(("decode", "letterbox", "queue", "infer", "postprocess", "total"), 1.0)
    image = {"width": 640, "height": 480, "orientation": 1, **found}
    return {"model": "m", "version": "1", "task": "t", "images": [image], "timing_ms": timing}


def boxed(class_id: int, name: str, left: float) -> dict[str, object]:
    box = {"x1": left, "y1": 50, "x2": left + 100, "y2": 150}
    return {"box": box, "score": 0.9, "class_id": class_id, "class_name": name}


def compare(page, labels: list[str] | None, task: str, **found: object) -> str:
    """Compare version 2 of the demo model, which answers as given, with version 1; the summary."""
    about = "**/v1/models/digits/versions/1"
    ours = [boxed(3, "cat", 10), boxed(4, "dog", 200), boxed(5, "cow", 400)]

    def described(route, **changes):
        route.fulfill(json=route.fetch().json() | changes)

    labelled = {"labels": ["a", "b", "c", "cat", "dog", "cow"]}
    page.route("**/v1/models/digits", lambda route: described(route, **labelled))
    page.route(about, lambda route: described(route, labels=labels, task=task))
    page.route("**/digits/predict?*", lambda route: route.fulfill(json=answer(detections=ours)))
    page.route("**/versions/1/predict?*", lambda route: route.fulfill(json=answer(**found)))
    page.reload()
    page.locator(".facts").filter(has_text="openvino").wait_for()
    page.set_input_files("#files", DEMO / "scene-1.jpg")
    answered(page)
    page.click("#compare")
    page.locator(".facts").nth(1).filter(has_text=task).wait_for()
    says(page, "#summary", r"\d.*(in both|right only|compare)")
    return page.inner_text("#summary")


def test_classes_are_compared_by_name_whatever_their_ids(page):
    theirs = [boxed(17, "cat", 12), boxed(3, "dog", 200), boxed(4, "horse", 400)]
    labels = ["x", "y", "z", "dog", "horse", *("?" * 12), "cat"]
    said = compare(page, labels, "detect", detections=theirs)
    assert said == "2 in both, 1 left only, 1 right only."
    rows = page.locator("#found .row").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["cow", "horse", "dog", "cat"]
    assert page.locator(".alone").evaluate_all("(all) => all.map((each) => each.item.class_name)")
    # One name has one colour, which is that of the left model.
    colours = """() => [...document.querySelectorAll('g.object:not(.label)')]
        .map((each) => [each.item.class_name, each.style.getPropertyValue('--colour')])"""
    drawn = page.evaluate(colours)
    assert len({colour for name, colour in drawn if name == "cat"}) == 1
    assert len({colour for name, colour in drawn if name == "dog"}) == 1
    assert dict(drawn)["cat"] != dict(drawn)["dog"]


@pytest.mark.parametrize(
    ("labels", "task", "ends"),
    [
        (["fish"], "detect", " The two models have no class name in common."),
        (None, "detect", " The model on the right has no class names to compare."),
        (["cat"], "pose", " Only boxes are compared."),
    ],
)
def test_what_hinders_a_comparison_is_said(page, labels, task, ends):
    said = compare(page, labels, task, detections=[boxed(0, (labels or ["0"])[0], 300)])
    assert said == f"0 in both, 3 left only, 1 right only.{ends}"


def test_different_tasks_are_not_compared(page):
    classes = [{"class_id": 0, "class_name": "cat", "score": 0.8}]
    said = compare(page, ["cat"], "classify", classes=classes)
    assert said == (
        f"Left: 3 objects: {', '.join(f'1 {TIMES} {name}' for name in ('cat', 'dog', 'cow'))}. "
        "Right: cat 80.0 %. "
        "Not compared: one finds boxes, the other classes of the whole image."
    )
    assert page.locator("#found mark").all_inner_texts() == ["left"] * 3 + ["right"]
    assert page.locator(".alone").count() == 0
