"""The page of a server with keys asks for one, and keeps it while its tab is open."""

import json
from datetime import UTC, datetime

import pytest
from tests.serving import start_server

from fovea_keys.key import digest_of, new_token

from .conftest import DEMO, choose, listed

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def guarded(demo_repository, tmp_path_factory):
    folder, token = tmp_path_factory.mktemp("keys"), new_token()
    secrets, created = [{"sha256": digest_of(token)}], datetime.now(UTC).isoformat()
    key = {"name": "page", "secrets": secrets, "scopes": ["predict"], "created": created}
    (folder / "keys.json").write_text(json.dumps({"keys": [key]}))
    server = start_server(demo_repository, folder, [f"--keys={folder / 'keys.json'}"])
    yield server, token
    assert server.stop() == 0


def test_it_asks_until_the_key_is_right_and_then_no_more(browser, guarded):
    server, token = guarded
    asked, given = [], ["fov_wrong", token]
    page = browser.new_page()

    def answer(dialog) -> None:
        asked.append(dialog.message)
        dialog.accept(given.pop(0))

    page.on("dialog", answer)
    page.goto(server.url)
    choose(page, DEMO / "scene-1.jpg")
    assert listed(page)
    page.reload()
    choose(page, DEMO / "scene-1.jpg")
    assert listed(page)
    assert [text.split(".")[0] for text in asked] == [
        "this server asks for a key",
        "this key is not known here",
    ]
    page.close()


def test_who_gives_no_key_is_asked_once(browser, guarded):
    server, _ = guarded
    asked = []
    page = browser.new_page()
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.goto(server.url)
    alert = page.locator("#alert")
    alert.wait_for()
    assert "asks for a key" in alert.inner_text()
    # It looks after the models every three seconds.
    with page.expect_response("**/v1/models"):
        pass
    assert len(asked) == 1
    page.close()
