"""A camera over RTSP, served: its events name the objects of the scene that it shows."""

import json
import shutil
from collections import Counter

import httpx
import pytest
from tests.conftest import DEMO
from tests.server.streams.conftest import rtsp, rtsp_ports  # noqa: F401
from tests.serving import start_server

pytestmark = [pytest.mark.smoke, pytest.mark.real]


@pytest.fixture
def server(demo_repository, tmp_path):
    repository = shutil.copytree(demo_repository, tmp_path / "repository")
    server = start_server(repository, tmp_path, ["--allow-url", "--url-allow-host=127.0.0.1"])
    yield server
    assert server.stop() == 0


def test_objects_of_the_scene_appear(rtsp, server):  # noqa: F811
    image = (DEMO / "scene-1.jpg").read_bytes()
    [found] = httpx.post(server.predict_url("digits"), content=image).json()["images"]
    wanted = Counter(each["class_name"] for each in found["detections"])
    stream = {"id": "gate", "source": f"rtsp://{rtsp[0]}/scene", "model": "digits"}
    url = f"{server.url}/v1/streams"
    httpx.post(url, json={**stream, "events": ["appeared"]}).raise_for_status()
    appeared: Counter[str] = Counter()
    lines = {"accept": "application/x-ndjson"}
    with httpx.stream("GET", f"{url}/gate/events", headers=lines) as events:
        for line in filter(None, events.iter_lines()):
            appeared[json.loads(line)["class_name"]] += 1
            if wanted <= appeared:
                break
    assert set(appeared) == set(wanted)
    drawn = httpx.get(f"{url}/gate/image")
    assert (drawn.headers["content-type"], drawn.content[:2]) == ("image/jpeg", b"\xff\xd8")
