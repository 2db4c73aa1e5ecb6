"""docs/how-to/streams.md: each recipe runs, but for the addresses of its cameras."""

import asyncio
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import aiomqtt
import cv2
import httpx
import pytest
from ruamel.yaml import YAML
from tests.docs.pages import ROOT
from tests.server.streams import conftest as cameras
from tests.server.streams.receiver import Receiver, receiving
from tests.server.streams.test_mqtt import PASSWORD, USER, broker
from tests.serving import free_ports, start_server
from tools.locks import EXTRAS

from fovea_server.settings import Settings
from fovea_server.streams.cameras.config import KEYS, OPTIONS, StreamConfig

pytestmark = pytest.mark.real

mjpeg = cameras.mjpeg
PAGE = (ROOT / "docs" / "how-to" / "streams.md").read_text()
PARTS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
DOOR, YARD, NIGHT, EIGHT = (
    next(title for title in PARTS if word in title)
    for word in ("Home Assistant", "alarm", "recordings", "docker")
)


def block(title, kind):
    return re.search(rf"^```{kind}\n(.*?)^```", PARTS[title], re.MULTILINE | re.DOTALL)[1]


def lines_of(title):
    return block(title, "text").splitlines()


def settings(title, **changed):
    """The stream of a recipe as it is written, and with a camera and a model of the test."""
    [(name, given)] = tomllib.loads(block(title, "toml")).items()
    StreamConfig.parse(name, given)
    lines = (f"{key} = {json.dumps(each)}" for key, each in {**given, **changed}.items())
    return f"[{name}]\n" + "\n".join(lines) + "\n"


@pytest.fixture
def serving(demo_repository, tmp_path):
    """Serve the demo's model with a streams.toml."""
    running = []

    def serve(text):
        shutil.copytree(demo_repository, tmp_path / "repository")
        (tmp_path / "repository" / "streams.toml").write_text(text)
        flags = ["--allow-url", "--url-allow-host=127.0.0.1"]
        running.append(start_server(tmp_path / "repository", tmp_path, flags))
        return running[0]

    yield serve
    for server in running:
        assert server.stop() == 0


async def heard(port, topics):
    """Subscribe, and return what came once each topic had something."""
    told = {}
    given = {"port": port, "username": USER, "password": PASSWORD}
    async with asyncio.timeout(120), aiomqtt.Client("127.0.0.1", **given) as client:
        for topic in topics:
            await client.subscribe(topic)
        async for message in client.messages:
            told[message.topic.value] = message.payload.decode()
            if len(told) == len(topics):
                break
    return told


def test_a_door_in_home_assistant(serving, mjpeg, tmp_path):
    [port] = free_ports(1)
    address = f"mqtt://{USER}:{PASSWORD.replace('@', '%40').replace(' ', '%20')}@127.0.0.1:{port}"
    camera = {"source": f"http://{mjpeg}/scene", "model": "digits", "mqtt": f"{address}/fovea"}
    lines = ["door=0.5,0,0.5,1"]
    with broker(port, tmp_path):
        serving(settings(DOOR, **camera, lines=lines))
        wanted = lines_of(DOOR)
        told = asyncio.run(heard(port, wanted))
    assert told.keys() == set(wanted)
    sensor = json.loads(told["homeassistant/sensor/fovea_porch/door_in/config"])
    assert (sensor["device"]["name"], sensor["name"]) == ("Fovea porch", "door in")
    assert f'"{sensor["device"]["name"]}"' in PARTS[DOOR]
    assert told["fovea/porch/status"] == "online"
    assert json.loads(told["fovea/porch/counts/door"]).keys() == {"in", "out"}


def test_an_alarm_by_webhook(serving, mjpeg):
    zone = "gate=0,0,1,0,1,1,0,1:after=1s"
    camera = {"source": f"http://{mjpeg}/scene", "model": "digits", "zones": [zone]}
    receiver = Receiver()
    with receiving(receiver) as port:
        server = serving(settings(YARD, **camera, webhook=f"http://127.0.0.1:{port}/alarm"))
        receiver.wait_for(1)
        [(head, _), *_] = receiver.taken
        event = receiver.events[0]
        shown = set(re.findall(r'"(\w+)":', PARTS[YARD]))
        assert shown <= {*event, *event["box"]}
        assert (event["kind"], event["name"]) == ("entered", "gate")
        assert event["duration_s"] >= 1
        assert head["webhook-signature"].startswith("v1,")
        image = f"{server.url}/v1/streams/yard/events/images/{event['image']}"
        assert httpx.get(image).content[:2] == b"\xff\xd8"


@pytest.mark.timeout(600)
def test_recordings_overnight(workplace):
    folder, _ = workplace
    (folder / "recordings").mkdir(exist_ok=True)
    bus = cv2.imread(str(folder / "bus.jpg"))
    video = cv2.VideoWriter(
        str(folder / "recordings" / "a.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 5, (640, 480)
    )
    # The bus and its people drive through the picture.
    for n in range(24):
        picture = cv2.copyMakeBorder(
            cv2.resize(bus, (320, 480)), 0, 0, 640, 640, cv2.BORDER_CONSTANT
        )
        video.write(picture[:, 900 - 30 * n : 1540 - 30 * n])
    video.release()
    said = [
        subprocess.check_output(line, shell=True, text=True)
        for line in block(NIGHT, "bash").splitlines()
    ]
    assert int(said[-1]) >= 1
    lines = (folder / "recordings" / "a.mp4.jsonl").read_text()
    kinds = {json.loads(line)["kind"] for line in lines.splitlines()}
    assert {"appeared", "crossed", "count"} <= kinds


def test_eight_cameras_by_compose(tmp_path):
    subprocess.run(block(EIGHT, "bash"), shell=True, check=True, cwd=tmp_path)
    streams = tomllib.loads((tmp_path / "streams.toml").read_text())
    configs = [StreamConfig.parse(name, given) for name, given in streams.items()]
    assert len({each.address.shown for each in configs}) == 8
    reader = YAML(typ="safe")
    [(name, service)] = reader.load(block(EIGHT, "yaml"))["services"].items()
    ours = reader.load(ROOT / "docker-compose.yml")["services"][name]
    assert ours["profiles"] == [name]
    assert service["build"]["args"]["EXTRAS"] in EXTRAS
    fields = {f"FOVEA_{field.upper()}" for field in Settings.model_fields}
    assert service["environment"].keys() <= fields
    [mount] = service["volumes"]
    source, target, _ = mount.split(":")
    assert (Path(source).name, target) == ("streams.toml", "/repository/streams.toml")


def test_every_key_is_listed():
    table = PAGE.partition("| key | means |\n|---|---|\n")[2].partition("\n\n")[0]
    listed = {
        key for row in table.splitlines() for key in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert listed <= {*KEYS}
    # The others are options of requests.
    assert {*KEYS} - {*OPTIONS} - {"enabled", "transport"} <= listed
