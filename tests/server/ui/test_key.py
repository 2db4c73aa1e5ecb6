"""The page of a server with keys asks for one, and keeps it while its tab is open."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from tests.serving import start_server
from tests.system import program

from fovea_server.auth.key import digest_of, new_token

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


def test_copied_code_has_a_place_for_the_key(browser, guarded, tmp_path):
    server, token = guarded
    (tmp_path / "scene-1.jpg").write_bytes((DEMO / "scene-1.jpg").read_bytes())
    page = browser.new_page()
    page.on("dialog", lambda dialog: dialog.accept(token))
    page.goto(server.url)
    choose(page, DEMO / "scene-1.jpg")
    found = len(listed(page))
    code = {}
    for language in ("curl", "Python", "JavaScript"):
        page.get_by_label(language).check(force=True)
        code[language] = page.inner_text("#code")
        assert "FOVEA_API_KEY" in code[language]
        assert token not in code[language]
    page.close()
    program("curl", package="curl")
    (tmp_path / "fovea.js").write_text((DEMO.parent / "ui/fovea.js").read_text())
    (tmp_path / "found.mjs").write_text(code["JavaScript"])
    commands = [["sh", "-c", code["curl"]], [sys.executable, "-c", code["Python"]]]
    commands.append([program("node", package="nodejs"), "found.mjs"])
    for command in commands:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "FOVEA_API_KEY": token},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        count = done.stdout.count('"class_id"') or len(done.stdout.splitlines())
        assert count == found


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
