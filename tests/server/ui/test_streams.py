"""The tab of streams: what is listed, shown and drawn, and what a key may change."""

import json
import shutil

import httpx
import pytest
from tests.keyed import key
from tests.server.streams import conftest as cameras
from tests.serving import start_server

from .conftest import check_access, opened, says

pytestmark = pytest.mark.browser

mjpeg = cameras.mjpeg
FLAGS = ["--allow-url", "--url-allow-host=127.0.0.1"]
FLOOR = "floor=0,0.6,1,0.6,1,1,0,1:anchor=center"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    owner = key("add", "owner", "--keys", file, "--scope", "predict,control")
    looks = key("add", "looks", "--keys", file, "--scope", "predict,cameras")
    return file, owner, looks, key("add", "predicts", "--keys", file)


@pytest.fixture(scope="module")
def server(demo_repository, keys, mjpeg, tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    shutil.copytree(demo_repository, folder / "repository")
    (folder / "repository" / "streams.toml").write_text(
        f'[yard]\nsource = "http://{mjpeg}/scene"\nmodel = "digits"\nfps = 5\nzones = ["{FLOOR}"]\n'
    )
    running = start_server(folder / "repository", folder, [*FLAGS, f"--keys={keys[0]}"])
    yield running
    assert running.stop() == 0


@pytest.fixture
def tab_of(browser, server):
    """Open the tab with a key, as wide as a desktop or a phone."""
    pages = []

    def open_tab(token, width=1300):
        page = browser.new_page(viewport={"width": width, "height": 900})
        pages.append(page)
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: pytest.fail(str(error)))
        page.add_init_script(f"sessionStorage.setItem('fovea-key', '{token}')")
        page.goto(f"{server.url}/#streams")
        return page

    yield open_tab
    for page in pages:
        page.close()


def asked(server, token, path, method="GET"):
    address = f"{server.url}/v1/streams/{path}"
    return httpx.request(method, address, headers={"x-api-key": token})


def shown(page):
    """Wait for the picture, and return its size and the number of its colours."""
    page.locator("#watched:not(.empty)").wait_for()
    return page.evaluate("""() => {
        const canvas = document.getElementById("watched-picture");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return [canvas.width, canvas.height, new Set(new Uint32Array(data.buffer)).size];
    }""")


def click(page, *points):
    box = page.locator("#watched").bounding_box()
    for x, y in points:
        place = {"x": box["width"] * x, "y": box["height"] * y}
        page.locator("#watched").click(position=place)


def test_without_streams_the_tab_says_how_to_get_one(browser, page_server):
    with opened(browser, page_server) as page:
        page.get_by_role("link", name="Streams").click()
        says(page, "#no-streams", r"pip install '\.\[streams\]'")
        assert not page.locator("#images").is_visible()
        page.get_by_role("button", name="New stream").click()
        page.fill("#new-id", "door")
        page.fill("#new-source", "rtsp://127.0.0.1/x")
        page.get_by_role("button", name="Start").click()
        says(page, "#streams-alert", "--allow-url")
        page.get_by_role("link", name="Images").click()
        page.locator("#images").wait_for()
        assert not page.locator("#streams").is_visible()


def test_one_who_may_look_sees_pictures_counts_and_events(tab_of, keys):
    page = tab_of(keys[2])
    says(page, "#stream-list [aria-pressed=true]", "yard")
    says(page, "#stream-list", "live")
    says(page, "#stream-list", r"\d/s · \d+ ms old")
    width, height, colours = shown(page)
    assert (width, height) == (640, 480)
    assert colours > 1000
    says(page, "#counts", r"floor\s*\d")
    says(page, "#events", r"#\d+ (appeared|entered|left|lost)")
    for name in ("New stream", "Stop", "Delete", "Remove floor"):
        assert not page.get_by_role("button", name=name).is_visible()
    # One who may not look is told so.
    page = tab_of(keys[3])
    says(page, "#stream-list [aria-pressed=true]", "yard")
    page.locator("#watched[data-state*='the scope cameras']").wait_for()
    assert page.locator("#watched.empty").count() == 1


def test_a_page_that_is_loaded_lists_the_last_events_of_the_log(tab_of, keys, server):
    """Also of a stream that is over, where no more come; and it asks for nothing that is not."""
    path = "yard/events?after=-1&kinds=appeared,lost"
    head = {"x-api-key": keys[2], "accept": "application/x-ndjson"}
    with httpx.stream("GET", f"{server.url}/v1/streams/{path}", headers=head, timeout=30) as answer:
        last = json.loads(next(answer.iter_lines()))
    page = tab_of(keys[2])
    missing = []
    page.on("response", lambda each: missing.append(each.url) if each.status == 404 else None)
    page.reload()
    shown(page)
    page.locator(f"#events time[datetime='{last['time']}']").first.wait_for()
    assert page.locator("#events li").count() > 1
    assert not missing


def test_zones_are_drawn_and_copied_where_they_may_not_be_applied(tab_of, keys):
    page = tab_of(keys[1], width=390)
    shown(page)
    page.click("#draw-zone")
    click(page, (0.1, 0.1), (0.9, 0.1))
    says(page, "#shape-hint", "Click 1 more point ")
    click(page, (0.5, 0.75))
    page.fill("#shape-name", "roof")
    page.fill("#shape-classes", "3, 5")
    page.fill("#shape-after", "30s")
    text = page.inner_text("#shape-option")
    assert text.startswith("--zone roof=0.")
    assert text.endswith(":classes=3,5:after=30s")
    numbers = [float(each) for each in text.split("=")[1].split(":")[0].split(",")]
    assert numbers == pytest.approx([0.1, 0.1, 0.9, 0.1, 0.5, 0.75], abs=0.005)
    assert page.inner_text("#shape-setting") == f'zones = ["{text.removeprefix("--zone ")}"]'
    assert not page.locator("#shape-apply").is_visible()
    says(page, "#shape-where", r"below \[yard\]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    check_access(page)
    page.keyboard.press("Escape")
    assert not page.locator("#shape").is_visible()


def test_an_owner_begins_changes_and_ends_a_stream(tab_of, server, keys, mjpeg):
    owner = keys[1]
    page = tab_of(owner)
    page.get_by_role("button", name="New stream").click()
    page.fill("#new-id", "door")
    page.fill("#new-source", f"http://me:s3cret@{mjpeg}/scene")
    page.get_by_role("button", name="Start").click()
    says(page, "#stream-list [aria-pressed=true]", "door")
    assert "s3cret" not in page.content()
    shown(page)
    page.click("#draw-line")
    click(page, (0.5, 0.9), (0.4, 0.2), (0.5, 0.1))
    check_access(page)
    page.click("#shape-apply")
    says(page, "#counts", r"line1\s*in \d+\s*out \d+")
    [line] = asked(server, owner, "door").json()["lines"]
    numbers = [float(each) for each in line.removeprefix("line1=").split(",")]
    assert numbers == pytest.approx([0.5, 0.9, 0.5, 0.1], abs=0.005)
    page.get_by_role("button", name="Remove line1").click()
    says(page, "#no-counts", "None yet")
    page.locator("#no-counts").wait_for()
    page.get_by_role("button", name="Stop").click()
    says(page, "#stream-list [aria-pressed=true]", "stopped")
    page.locator("#pause").filter(has_text="Start").click()
    says(page, "#stream-list [aria-pressed=true]", "live")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    page.locator("#stream-list li").filter(has_text="door").wait_for(state="detached")
    assert asked(server, owner, "door").status_code == 404
