"""Streams of a real server: of clients and streams.toml, over restarts and reloads; their ends."""

import asyncio
import gc
import io
import json
import shutil
import time
import weakref
from dataclasses import replace

import httpx
import onnx
import pytest
from PIL import Image
from tests.built import build
from tests.server.streams.conftest import write_moving_scene
from tests.serving import free_ports, start_server

from fovea_engines.build.plan import BuildPlan
from fovea_server.app import build_app
from fovea_server.dataplane.canaries import Canaries
from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.dataplane.decode_limiter import DecodeLimiter
from fovea_server.dataplane.tiles import Tiles
from fovea_server.models.opening import image_limits
from fovea_server.settings import Settings
from fovea_server.streams.cameras.table import StreamTable
from fovea_server.tracking.tracks import Tracks

pytestmark = pytest.mark.slow

FLAGS = [
    "--allow-url",
    "--url-allow-host=127.0.0.1",
    "--model-control-mode=explicit",
    "--load-model=digits",
]
POLL_S = 60
CAMERA = {"source": "rtsp://127.0.0.1/x", "model": "digits"}


@pytest.fixture(scope="module")
def repository(demo_repository, tmp_path_factory):
    copy = tmp_path_factory.mktemp("streams") / "repository"
    shutil.copytree(demo_repository, copy)
    return copy


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    running = start_server(repository, tmp_path_factory.mktemp("log"), FLAGS)
    yield running
    assert running.stop() == 0


def streams(server):
    answer = httpx.get(f"{server.url}/v1/streams")
    assert answer.status_code == 200
    return {each["id"]: each for each in answer.json()["streams"]}


def wait_for(condition):
    until = time.monotonic() + POLL_S
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come")


def live(server, name, frames=3):
    def look():
        found = streams(server).get(name)
        return found if found and found["frames"]["answered"] >= frames else None

    return wait_for(look)


def post(server, **given):
    return httpx.post(f"{server.url}/v1/streams", json=given)


def test_a_stream_is_made_listed_changed_and_removed(server, mjpeg):
    given = {"id": "door", "source": f"http://me:s3cret@{mjpeg}/video", "model": "digits"}
    answer = post(server, **given, every="50ms", track="bytetrack", conf=0.4)
    assert answer.status_code == 201, answer.text
    found = live(server, "door")
    assert (found["state"], found["reason"]) == ("live", "")
    assert found["source"] == f"http://{mjpeg}/video"
    assert found["age_ms"] > 0
    assert found["rate"] > 0
    assert found["track"] == "bytetrack"
    metrics = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    assert 'fovea_streams{state="live"} 1' in metrics
    assert 'fovea_stream_frame_age_seconds{stream="door"}' in metrics
    assert 'fovea_tracked_frames_total{model="digits"}' in metrics

    again = post(server, **given)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "already_exists")
    address = f"{server.url}/v1/streams/door"
    changed = httpx.patch(address, json={"fps": 2, "every": None})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["fps"], changed.json()["rate"]) == (2, 0)
    assert live(server, "door", 1)["state"] == "live"
    wrong = httpx.patch(address, json={"modle": "digits"})
    assert wrong.status_code == 422
    assert "did you mean 'model'?" in wrong.json()["error"]["message"]
    assert httpx.delete(address).status_code == 200
    assert httpx.get(address).status_code == 404
    log = server.log.read_text()
    assert "stream door" in log
    assert "s3cret" not in log + metrics + json.dumps(found)


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"source": "rtsp://127.0.0.1/x", "modle": "a"}, 422, "did you mean 'model'?"),
        ({"source": "rtsp://127.0.0.1/x"}, 422, "needs the key model"),
        ({"source": "rtsp://127.0.0.1/x", "model": "nobody"}, 404, "nobody"),
        ({"source": "/etc/passwd", "model": "digits"}, 400, "define the stream in streams.toml"),
        ({"source": "0", "model": "digits"}, 400, "define the stream in streams.toml"),
        ({"source": "rtsp://127.0.0.1/x", "model": "digits", "every": "x"}, 422, "200ms"),
        ({**CAMERA, "every": 200}, 422, "every is '200'; it must be a time"),
        ({"source": "rtsp://127.0.0.1/x", "model": "digits", "conf": 2}, 422, "conf"),
        ({"source": "rtsp://127.0.0.1/x", "model": "digits", "track": "x"}, 422, "bytetrack"),
        ({"source": "ftp://127.0.0.1/x", "model": "digits"}, 422, "rtsp://"),
        (
            *({**CAMERA, "lines": ["a=0,0,1,1:classes=zeor"]}, 422),
            "line a: model 'digits' has no class 'zeor'; its classes are 0, 1",
        ),
        (
            {"source": "rtsp://127.0.0.1/x", "model": "digits", "id": "a b"},
            422,
            "not a valid stream ID",
        ),
    ],
)
def test_what_is_wrong_is_named(server, given, status, words):
    answer = post(server, **{"id": "wrong", **given})
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert "wrong" not in streams(server)


def test_streams_of_the_file_follow_it(server, repository, mjpeg):
    file = repository / "streams.toml"
    text = f'source = "http://{mjpeg}/video"\nmodel = "digits"\nfps = 10\n'
    file.write_text(f"[yard]\n{text}[gate]\n{text}")
    live(server, "yard")
    live(server, "gate")
    refused = httpx.delete(f"{server.url}/v1/streams/gate")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "already_exists")
    file.write_text(f"[bad]\n{text}sped = 1\n[yard]\n{text}[gate]\n{text}[late]\n{text}")
    live(server, "late")
    file.write_text(f"[yard]\n{text}[gate]\n{text}sped = 1\n")
    wait_for(lambda: "unknown key 'sped' of a stream" in server.log.read_text())
    wait_for(lambda: streams(server).keys() == {"yard", "gate"})
    file.write_text(f"[yard]\n{text}")
    wait_for(lambda: "gate" not in streams(server))
    before = live(server, "yard")["frames"]["answered"]

    # Its model is loaded again: it goes on.
    for verb in ("unload", "load"):
        answer = httpx.post(f"{server.url}/v2/repository/models/digits/{verb}")
        assert answer.status_code == 200
        if verb == "unload":
            assert wait_for(lambda: streams(server)["yard"]["reason"])
            assert streams(server)["yard"]["state"] == "refused"
            wait_for(lambda: "stream yard: " in server.log.read_text())
    live(server, "yard", before + 3)
    wait_for(lambda: streams(server)["yard"]["state"] == "live")
    file.unlink()
    wait_for(lambda: not streams(server))


def test_streams_of_clients_come_back(repository, tmp_path, mjpeg):
    first = start_server(repository, tmp_path, FLAGS)
    answer = post(first, id="kept", source=f"http://{mjpeg}/video", model="digits", fps=5)
    assert answer.status_code == 201
    live(first, "kept", 1)
    assert first.stop() == 0
    assert (repository / "streams.json").stat().st_mode & 0o077 == 0
    again = start_server(repository, tmp_path, FLAGS)
    try:
        live(again, "kept", 1)
        assert httpx.delete(f"{again.url}/v1/streams/kept").status_code == 200
    finally:
        assert again.stop() == 0


def test_changes_of_one_stream_come_one_after_another(server, mjpeg):
    given = {
        "id": "race",
        "source": f"http://{mjpeg}/video",
        "model": "digits",
        "events": ["count"],
    }
    address = f"{server.url}/v1/streams"
    request_id = "who-made-the-race"

    async def race():
        async with httpx.AsyncClient(timeout=60) as client:
            headers = {"X-Request-ID": request_id}
            answer = await client.post(address, json=given, headers=headers)
            assert answer.status_code == 201
            await asyncio.to_thread(live, server, "race", 1)
            work = [client.post(address, json=given) for _ in range(4)]
            change = {"every": "900ms"}
            work += [client.patch(f"{address}/race", json=change) for _ in range(2)]
            answers = await asyncio.gather(*work)
            assert (await client.delete(f"{address}/race")).status_code == 200
            return [each.status_code for each in answers]

    assert asyncio.run(race()) == [409] * 4 + [200] * 2
    assert "race" not in streams(server)
    lines = [line for line in server.log.read_text().splitlines() if "stream race from" in line]
    assert lines
    assert not any(request_id in line for line in lines)


def test_what_cannot_run_is_listed_with_what_to_do(demo_repository, tmp_path):
    repository = shutil.copytree(demo_repository, tmp_path / "repository")
    address = "rtsp://me:s3cret@192.0.2.1/x"
    kept = {"old": {"source": address, "model": "digits", "fps": 2}}
    (repository / "streams.json").write_text(json.dumps(kept))
    text = f'source = "{address}"\nmodel = "digits"\n'
    broken = {
        "typo": f"{text}tracks = 1\n",
        "bare": 'source = "clip.mp4"\n',
        "hook": f'{text}webhook = "http://a/"\nwebhook_secret = "s3cret"\n',
    }
    file = repository / "streams.toml"
    file.write_text("".join(f"[{name}]\n{each}" for name, each in broken.items()))
    server = start_server(repository, tmp_path)
    try:
        found = streams(server)
        assert {name: each["state"] for name, each in found.items()} == dict.fromkeys(
            ("old", "typo", "bare", "hook"), "failed"
        )
        reasons = {name: each["reason"] for name, each in found.items()}
        assert "start it with --allow-url" in reasons["old"]
        assert "unknown key 'tracks' of a stream; did you mean 'track'?" in reasons["typo"]
        assert reasons["bare"].startswith("stream bare needs the key model")
        assert "create one with echo" in reasons["hook"]
        assert found["old"]["source"] == "rtsp://192.0.2.1/x"
        assert [found[name]["of_file"] for name in ("old", "typo")] == [False, True]
        metrics = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
        assert 'fovea_streams{state="failed"} 4' in metrics
        assert httpx.get(f"{server.url}/v1/health/ready").status_code == 200
        assert "s3cret" not in json.dumps(found) + server.log.read_text()

        assert post(server, id="a", source=address, model="digits").status_code == 400
        own = f"{server.url}/v1/streams/old"
        assert httpx.get(own).json() == found["old"]
        no_picture = httpx.get(f"{own}/image")
        assert (no_picture.status_code, "--allow-url" in no_picture.text) == (404, True)
        assert "--allow-url" in httpx.patch(own, json={"fps": 3}).json()["error"]["message"]
        assert httpx.delete(f"{server.url}/v1/streams/typo").status_code == 409
        assert httpx.delete(own).status_code == 200
        # A file that cannot be read is listed until it can.
        file.write_text("[typo\n")
        wait_for(lambda: "streams.toml" in streams(server))
        assert "the file cannot be read: " in streams(server)["streams.toml"]["reason"]
        assert streams(server).keys() == {"streams.toml", "typo", "bare", "hook"}
        file.write_text(f'[typo]\nsource = "{demo_repository}/no.mp4"\nmodel = "digits"\n')
        wait_for(lambda: "the file does not exist" in streams(server)["typo"]["reason"])
        assert streams(server).keys() == {"typo"}
    finally:
        assert server.stop() == 0


def test_without_the_extra_streams_are_listed_and_the_server_is_ready(demo_repository, tmp_path):
    repository = shutil.copytree(demo_repository, tmp_path / "repository")
    (repository / "streams.json").write_text('{"old": {"source": "rtsp://a/", "model": "digits"}}')
    (repository / "streams.toml").write_text('[new]\nsource = "0"\nmodel = "digits"\n')
    bare = "import sys; sys.modules['av'] = None;from fovea_server.cli.main import main; main()"
    server = start_server(repository, tmp_path, program=("-c", bare))
    try:
        found = streams(server)
        assert found.keys() == {"old", "new"}
        for each in found.values():
            assert each["state"] == "failed"
            assert "pip install 'fovea-serve[streams]'" in each["reason"]
        assert httpx.get(f"{server.url}/v1/health/ready").status_code == 200
        log = server.log.read_text()
        assert "streams.json: [old]: cameras and streams need packages" in log
        assert "streams.toml: [new]: cameras and streams need packages" in log
    finally:
        assert server.stop() == 0


def test_a_file_waits_for_its_model(server, repository, tmp_path):
    clip, file = tmp_path / "clip.avi", repository / "streams.toml"
    write_moving_scene(clip, 12, 3)
    control = f"{server.url}/v2/repository/models/digits"
    assert httpx.post(f"{control}/unload").status_code == 200
    file.write_text(f'[clip]\nsource = "{clip}"\nmodel = "digits"\n')
    found = wait_for(lambda: (one := streams(server).get("clip")) and one["reason"] and one)
    assert (found["state"], "model 'digits'" in found["reason"]) == ("waiting", True), found
    time.sleep(1)  # It asks some times.
    assert streams(server)["clip"]["frames"]["refused"] == 0
    assert httpx.post(f"{control}/load").status_code == 200
    wait_for(lambda: streams(server)["clip"]["state"] == "ended")
    frames = streams(server)["clip"]["frames"]
    assert (frames["answered"], frames["refused"]) == (12, 0)
    file.unlink()
    wait_for(lambda: not streams(server))


@pytest.fixture(scope="module")
def nameless(server, repository, demo_model):
    """A model that is loaded, and has no names of classes."""
    source = onnx.load(demo_model)
    del source.metadata_props[:]
    onnx.save(source, repository / "nameless.onnx")
    build(BuildPlan(repository / "nameless.onnx", "nameless", repository, "onnxruntime"))
    answer = httpx.post(f"{server.url}/v2/repository/models/nameless/load")
    assert answer.status_code == 200, answer.text
    return "nameless"


def test_what_can_never_run_has_failed(server, repository, mjpeg, nameless, tmp_path):
    """It holds up no other stream of its model."""
    clip, file = tmp_path / "clip.avi", repository / "streams.toml"
    write_moving_scene(clip, 4, 3)
    on_file, live_one = f'source = "{clip}"\n', f'source = "http://{mjpeg}/video"\n'
    named = f'model = "{nameless}"\nclasses = "seven"\n'
    file.write_text(
        f'[unknown]\n{on_file}model = "nobody"\n[unnamed]\n{on_file}{named}'
        f"[camera]\n{live_one}{named}"
    )
    names = {"unknown", "unnamed", "camera"}

    def failed():
        there = streams(server)
        return {each for each in names & there.keys() if there[each]["state"] == "failed"} == names

    wait_for(failed)
    found = streams(server)
    assert "there is no model 'nobody'" in found["unknown"]["reason"]
    for each in ("unnamed", "camera"):
        assert "fovea build --labels" in found[each]["reason"]
    # It goes on once the operator has made what it lacks.
    shutil.copytree(repository / "digits", repository / "nobody")
    config = repository / "nobody" / "config.pbtxt"
    config.write_text(config.read_text().replace('"digits"', '"nobody"'))
    assert httpx.post(f"{server.url}/v2/repository/models/nobody/load").status_code == 200
    wait_for(lambda: streams(server)["unknown"]["state"] == "ended")
    assert streams(server)["unknown"]["frames"]["answered"] == 4
    file.unlink()
    wait_for(lambda: not streams(server))


def test_an_address_out_of_reach_is_refused_at_once(server, mjpeg):
    assert post(server, id="door", source=f"http://{mjpeg}/video", model="digits").is_success
    own = f"{server.url}/v1/streams/door"
    for host in ("192.168.7.7", "169.254.169.254", "[::1]"):
        refused = post(server, id="away", source=f"rtsp://{host}/x", model="digits")
        assert (refused.status_code, "--url-allow" in refused.text) == (400, True), refused.text
        assert httpx.patch(own, json={"source": f"http://{host}/x"}).status_code == 400
    assert {name: each["source"] for name, each in streams(server).items()} == {
        "door": f"http://{mjpeg}/video"
    }
    assert httpx.delete(own).is_success


def test_a_line_that_leaves_the_picture_is_told_with_its_size(server, mjpeg):
    given = {"source": f"http://{mjpeg}/video", "model": "digits"}
    lines = ["far=0,0,2000,20", "near=0,0,20,20"]
    assert post(server, id="door", **given, lines=lines).is_success
    found = wait_for(lambda: (one := streams(server)["door"])["reason"] and one)
    with Image.open(io.BytesIO(httpx.get(f"{server.url}/v1/streams/door/image").content)) as seen:
        size = f"{seen.width} x {seen.height} pixels"
    assert (found["state"], size in found["reason"]) == ("live", True), found
    assert ("line far" in found["reason"], "near" in found["reason"]) == (True, False), found
    assert httpx.delete(f"{server.url}/v1/streams/door").is_success


def test_a_camera_that_stays_away_is_logged_once(server):
    (port,) = free_ports(1)
    assert post(server, id="away", source=f"http://127.0.0.1:{port}/x", model="digits").is_success
    wait_for(lambda: streams(server)["away"]["reconnects"] >= 3)
    assert httpx.delete(f"{server.url}/v1/streams/away").is_success
    said = [line for line in server.log.read_text().splitlines() if "stream away" in line]
    assert sum("is waiting" in line for line in said) == 1, said
    assert sum("is connecting" in line for line in said) <= 1, said


def test_a_section_does_not_replace_the_stream_of_a_client(server, repository, mjpeg):
    given = {"source": f"http://{mjpeg}/video", "model": "digits"}
    assert post(server, id="taken", **given).is_success
    file = repository / "streams.toml"
    text = "".join(f'{key} = "{each}"\n' for key, each in given.items())
    file.write_text(f"[taken]\n{text}fps = 1\n[broken]\n{text}sped = 1\n")
    wait_for(lambda: "[taken]: a client has added a stream with this ID" in server.log.read_text())
    wait_for(lambda: "[broken]: unknown key 'sped'" in server.log.read_text())
    assert "fps" not in streams(server)["taken"]
    assert httpx.delete(f"{server.url}/v1/streams/taken").is_success
    wait_for(lambda: streams(server).get("taken", {}).get("fps") == 1)
    file.unlink()
    wait_for(lambda: "taken" not in streams(server))


@pytest.fixture
def uncollected():
    """Without the collector of garbage."""
    gc.disable()
    yield
    gc.enable()


def test_the_newest_frame_and_the_ids_go_with_their_stream(uncollected, demo_repository, tmp_path):
    write_moving_scene(tmp_path / "gate.avi", 4, 2)
    (tmp_path / "streams.toml").write_text(
        f'[gate]\nsource = "{tmp_path}/gate.avi"\nmodel = "digits"\ntrack = "bytetrack"\n'
    )
    (tmp_path / "digits").symlink_to(demo_repository / "digits")
    settings = Settings(model_repository=tmp_path)
    app = build_app(settings)
    registry, service, tracks = app.registry, app.service, Tracks(60)
    registry.start()
    plane = DataPlane(
        service.models,
        service.extensions.trace,
        DecodeLimiter(service.budget, cores=1, most_pixels=10**8),
        Tiles(image_limits(settings)),
        tracks,
        Canaries(),
    )

    async def run() -> None:
        while registry.reason:
            await asyncio.sleep(0.02)
        table = StreamTable(replace(service, plane=plane), tracks.forget)
        await table.start()
        stream = table.get("gate")
        async with asyncio.timeout(60):
            while not stream.over:
                await asyncio.sleep(0.02)
        assert stream.newest is not None, stream.state
        pixels = weakref.ref(stream.newest.result.pixels)
        assert next(iter(tracks.families())).samples
        del stream
        await table.stop()
        assert pixels() is None
        assert service.budget.freed

    try:
        asyncio.run(run())
    finally:
        registry.close()


@pytest.mark.parametrize(("enabled", "trims"), [("true", True), ("false", False)])
def test_ids_are_forgotten_and_memory_is_trimmed_behind_a_stream(tmp_path, enabled, trims):
    (tmp_path / "streams.toml").write_text(
        f'[gate]\nsource = "{tmp_path}/gate.mp4"\nmodel = "none"\nenabled = {enabled}\n'
    )
    settings = Settings(model_repository=tmp_path)
    service = build_app(settings).service
    forgotten: list[str] = []

    async def run() -> str:
        table = StreamTable(service, forgotten.append)
        await table.start()
        stream = table.get("gate")
        await table.stop()
        assert stream.over
        return stream.tracked_as

    tracked_as = asyncio.run(run())
    assert forgotten == [tracked_as]
    assert (service.budget.freed > 0) is trims
