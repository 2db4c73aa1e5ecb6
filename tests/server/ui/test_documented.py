"""The program of docs/http.md for a page of your own works as it is written there."""

import re
import shutil
import threading
from functools import partial
from http.server import ThreadingHTTPServer

import pytest
from tests.docs.pages import ROOT, ported

from .conftest import DEMO
from .test_other_origin import Quiet

pytestmark = pytest.mark.browser


def test_the_client_in_javascript(browser, serve, demo_repository, tmp_path):
    repository, site = tmp_path / "repository", tmp_path / "site"
    # The page names this model.
    shutil.copytree(demo_repository / "digits", repository / "yolov8n")
    config = repository / "yolov8n" / "config.pbtxt"
    config.write_text(config.read_text().replace('"digits"', '"yolov8n"'))
    text = (ROOT / "docs" / "http.md").read_text()
    [block] = re.findall(r"^```js\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    site.mkdir()
    (site / "index.html").write_text('<!doctype html><input id="input" type="file">')
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as host:
        threading.Thread(target=host.serve_forever).start()
        try:
            origin = f"http://127.0.0.1:{host.server_port}"
            server = serve(repository, f"--cors-origin={origin}")
            program = ported(block, {8000: server.port})
            (site / "own.js").write_text(f"{program}\nwindow.found = images;\n")
            page = browser.new_page()
            page.goto(origin)
            page.set_input_files("#input", DEMO / "scene-1.jpg")
            page.evaluate("() => import('./own.js')")
            assert page.evaluate("() => found[0].detections.length") > 0
            page.close()
        finally:
            host.shutdown()
