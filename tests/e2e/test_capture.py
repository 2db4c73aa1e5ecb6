"""A server that keeps images: which, whose it must not keep, and what tools make of them."""

import asyncio
import gc
import json
import shutil
import subprocess
import time
import weakref
import zipfile
from contextlib import ExitStack, closing
from xml.etree import ElementTree

import cv2
import httpx
import numpy as np
import pytest
from pycocotools.coco import COCO
from tests.conftest import DEMO
from tests.keyed import key, until
from tests.serving import start_server
from tests.slow_disk import slow_disk
from tritonclient import grpc

from fovea_engines.results.options import PredictOptions
from fovea_preprocess.image import decode_image
from fovea_server.app import build_app
from fovea_server.dataplane.prediction import PredictRequest
from fovea_server.monitoring.captures import captures
from fovea_server.settings import ModelControlMode, Settings

pytestmark = pytest.mark.slow

SCENES = [(DEMO / f"scene-{number}.jpg").read_bytes() for number in (1, 2)]
TOML = """
[capture]
rules = {rules}
per_minute = 8
"""


def kept(folder):
    return sorted(captures(folder), key=lambda each: each.folder.name)


@pytest.fixture(scope="module")
def repository(demo_repository, tmp_path_factory):
    """One engine under four names, each with rules of its own."""
    folder = tmp_path_factory.mktemp("captured") / "r"
    tables = {
        "all": TOML.format(rules='["rate 100%"]'),
        "hidden": TOML.format(rules='["rate 100%"]') + 'blur = "digits"\n',
        "none": TOML.format(rules="[]"),
        "wrong": TOML.format(rules='["often"]'),
        "digits": "",
    }
    for name, table in tables.items():
        shutil.copytree(demo_repository / "digits", folder / name)
        (folder / name / "config.pbtxt").unlink(missing_ok=True)
        if table:
            (folder / name / "fovea.toml").write_text(table)
    return folder


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    flags = ["--capture", str(folder / "kept"), "--capture-rule", "classes 7"]
    server = start_server(repository, folder, flags)
    yield server
    server.stop()


@pytest.fixture
def folder(server):
    return server.log.parent / "kept"


def predict(server, model, image=SCENES[0], **given):
    answer = httpx.post(server.predict_url(model), content=image, timeout=60, **given)
    assert answer.status_code == 200, answer.text
    return answer.json()["images"][0]


def number(folder, model):
    return len([each for each in captures(folder) if each.model == model])


def test_what_is_kept_is_what_was_sent_and_answered(server, folder, fovea):
    before = number(folder, "all")
    answer = predict(server, "all", headers={"x-request-id": "one-of-mine"})
    element = np.array([SCENES[1]], object)
    tensor = grpc.InferInput("images", [1], "BYTES")
    tensor.set_data_from_numpy(element)
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.infer("all", [tensor])
    until(lambda: number(folder, "all") == before + 2)
    mine, other = [each for each in kept(folder) if each.model == "all"][before:]
    about = mine.about()
    assert mine.image().read_bytes() == SCENES[0]
    assert other.image().read_bytes() == SCENES[1]
    assert {k: about[k] for k in ("model", "version", "task", "rule", "request_id")} == {
        "model": "all",
        "version": "1",
        "task": "detect",
        "rule": "rate 100%",
        "request_id": "one-of-mine",
    }
    assert about["result"]["detections"] == answer["detections"]
    assert mine.folder.stat().st_mode & 0o077 == 0
    assert not any(file.stat().st_mode & 0o077 for file in mine.folder.iterdir())
    coco = json.loads((mine.folder / "predictions.json").read_text())
    assert [each["category_id"] for each in coco["annotations"]] == [
        each["class_id"] for each in answer["detections"]
    ]
    code, out, err = fovea(
        "capture", "purge", folder, "--request-id", "one-of-mine", "--json", "-y"
    )
    assert code == 0, err
    assert (code, json.loads(out)["deleted"]) == (0, 1)
    assert not mine.folder.exists()
    assert other.folder.exists()


def test_rules_are_of_a_model_or_of_the_server(server, folder):
    predict(server, "none")
    predict(server, "wrong")
    has_seven = [
        any(each["class_name"] == "7" for each in predict(server, "digits", scene)["detections"])
        for scene in SCENES
    ]
    assert any(has_seven)
    until(lambda: number(folder, "digits") == sum(has_seven))
    assert number(folder, "none") == number(folder, "wrong") == 0
    until(lambda: "no image of model 'wrong' is captured" in server.log.read_text())
    assert server.metric("fovea_captures_total", 'model="digits"') == sum(has_seven)


def test_what_runs_a_model_without_a_server_holds_no_images(repository, tmp_path):
    """As `fovea watch` does, in an environment with the settings of a server."""
    settings = Settings(
        model_repository=repository,
        model_control_mode=ModelControlMode.EXPLICIT,
        threads=1,
        capture=tmp_path / "kept",
    )
    seen = []

    async def see():
        image = decode_image(SCENES[0])
        seen.append(weakref.ref(image.pixels))
        model = app.service.models.get("all")
        answer = await app.service.plane.predict(
            PredictRequest(model, None, [image], PredictOptions())
        )
        assert len(answer.images[0].found)

    with closing(build_app(settings)) as app:
        app.registry.load("all")
        for _ in range(3):
            asyncio.run(see())
        gc.collect()
        # The thread of the model may have the last one still.
        assert [each() for each in seen[:2]] == [None, None]
    assert not number(tmp_path / "kept", "all")


def test_wrong_rules_of_a_model_are_reported(server, repository, fovea):
    message = "'often' is not a capture rule"
    [line] = [each for each in server.log.read_text().splitlines() if "model wrong: " in each]
    assert message in line
    code, out, _ = fovea("inspect", "wrong", "--repository", repository)
    assert (code, message in out) == (0, True)
    code, out, _ = fovea("inspect", "--repository", repository, "--json")
    assert [each["name"] for each in json.loads(out) if "faults" in each] == ["wrong"]


FAULTS = {
    '[capture]\nrules = "empty"': "rules",
    "[capture]\nrules = [1]": "rules",
    '[capture]\nrules = ["classes 7,digit"]': "'digit'",
    '[capture]\nblur = "digit"': "'digits'",
    "[capture]\nper_minute = -1": "per_minute",
    "[capture]\nper_minut = 1": "'per_minute'",
    "[captures]": "'capture'",
    "capture = 1": "[capture]",
    "capture": "Expected '='",
}
"""Text of a fovea.toml, and the name or proposal in the message about it."""


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_names_its_key(demo_repository, tmp_path, fovea, text):
    shutil.copytree(demo_repository / "digits", tmp_path / "digits")
    (tmp_path / "digits" / "fovea.toml").write_text(text)
    code, out, _ = fovea("inspect", "digits", "--repository", tmp_path, "--json")
    [model] = json.loads(out)
    [fault] = model["faults"]
    assert code == 0
    assert "fovea.toml" in fault
    assert FAULTS[text] in fault


def test_a_client_may_refuse_and_a_minute_has_a_bound(server, folder):
    before = number(folder, "all")
    for _ in range(3):
        predict(server, "all", headers={"X-Fovea-No-Capture": "1"})
    for _ in range(24):
        predict(server, "all")
    # A minute may have ended between.
    until(lambda: number(folder, "all") > before)
    time.sleep(0.5)
    assert number(folder, "all") - before <= 16


def test_objects_are_blurred_before_anything_is_written(server, folder):
    answer = predict(server, "hidden")
    until(lambda: number(folder, "hidden") == 1)
    [one] = [each for each in kept(folder) if each.model == "hidden"]
    seen, sent = cv2.imread(str(one.image())), cv2.imdecode(np.frombuffer(SCENES[0], np.uint8), 1)
    inside = np.zeros(seen.shape[:2], bool)
    for box in (each["box"] for each in answer["detections"]):
        x1, y1, x2, y2 = (round(box[side]) for side in ("x1", "y1", "x2", "y2"))
        inside[max(0, y1) : y2, max(0, x1) : x2] = True
        blurred, original = seen[y1:y2, x1:x2], sent[y1:y2, x1:x2]
        assert cv2.Laplacian(blurred, cv2.CV_64F).std() < cv2.Laplacian(original, cv2.CV_64F).std()
    around = cv2.dilate(inside.astype(np.uint8), np.ones((25, 25))) == 0
    difference = np.abs(seen.astype(int) - sent)
    assert difference[around].mean() < 3 < difference[inside].mean()
    # And what finds them sees the picture as nobody does.
    assert number(folder, "digits") <= 2


@pytest.mark.parametrize("form", ["coco", "yolo", "label-studio", "cvat"])
def test_tools_read_what_is_exported(server, folder, fovea, tmp_path, form):
    if not number(folder, "all"):
        predict(server, "all")
        until(lambda: number(folder, "all"))
    captured = [each for each in kept(folder) if each.model == "all"]
    objects = sum(len(each.about()["result"]["detections"]) for each in captured)
    code, _, err = fovea(
        "capture", "export", folder, "--model", "all", "--format", form, "--out", tmp_path / "out"
    )
    assert code == 0, err
    out = tmp_path / "out"
    code, _, err = fovea("capture", "export", folder, "--model", "all", "--out", out)
    assert (code, "is not empty" in err) == (2, True)
    images = sorted(path.name for path in (out / "images").iterdir())
    assert len(images) == len(captured)
    match form:
        case "coco":
            coco = COCO(out / "predictions.json")
            assert sorted(each["file_name"] for each in coco.imgs.values()) == images
            assert len(coco.anns) == objects
        case "cvat":
            with zipfile.ZipFile(out / "annotations.zip") as archive:
                document = json.loads(archive.read("annotations/instances_default.json"))
            assert len(document["annotations"]) == objects
        case "yolo":
            lines = [path.read_text().splitlines() for path in (out / "labels").iterdir()]
            assert sum(map(len, lines)) == objects
        case "label-studio":
            tasks = json.loads((out / "tasks.json").read_text())
            regions = [one for task in tasks for one in task["predictions"][0]["result"]]
            assert len(regions) == objects
            labels = {
                each.get("value") for each in ElementTree.parse(out / "config.xml").iter("Label")
            }
            assert {one["value"]["rectanglelabels"][0] for one in regions} <= labels


def test_the_metric_of_bytes_follows_a_purge(server, folder, fovea):
    size = sum(each.size for each in kept(folder))
    assert size > 0
    until(lambda: server.metric("fovea_capture_bytes") == size)
    assert fovea("capture", "purge", folder, "--yes")[0] == 0
    until(lambda: server.metric("fovea_capture_bytes") == 0)


def test_a_full_disk_costs_no_answer(repository, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root alone")
    try:
        server = start_server(repository, tmp_path, ["--capture", str(disk / "kept")])
        for _ in range(6):
            predict(server, "all")
        until(lambda: 'reason="disk"' in server.metrics())
        assert server.metric("fovea_captures_dropped_total", 'reason="disk"') > 0
        assert server.stop() == 0
        for one in captures(disk / "kept"):
            assert one.about()["model"] == "all"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_slow_disk_costs_no_answer(demo_repository, tmp_path):
    """A megabyte a second, for images of five that are all to be kept."""
    repository = shutil.copytree(demo_repository, tmp_path / "r")
    rules = '[capture]\nrules = ["rate 100%"]\nper_minute = 1000\n'
    (repository / "digits" / "fovea.toml").write_text(rules)
    image = cv2.imencode(".bmp", np.zeros((1100, 1600, 3), np.uint8))[1].tobytes()
    with ExitStack() as stack:
        try:
            disk, throttle = stack.enter_context(slow_disk(tmp_path))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a slow disk takes root, loop devices and cgroups: {error}")
        server = start_server(repository, tmp_path, ["--capture", str(disk / "kept")])
        stack.callback(server.process.wait)
        stack.callback(server.process.kill)
        throttle(server.process.pid)
        for _ in range(24):
            predict(server, "digits", image)
        # All are answered, and the disk has time for none of most of them.
        assert number(disk / "kept", "digits") < 12
        assert server.metric("fovea_captures_dropped_total", 'reason="slow disk"') > 0
        until(lambda: number(disk / "kept", "digits"))
        server.process.kill()
        server.process.wait()
        for one in captures(disk / "kept"):
            assert one.image().read_bytes() == image


def test_a_key_says_whether_its_images_may_be_kept(repository, tmp_path):
    keys = tmp_path / "keys.json"
    private = key("add", "private", "--keys", keys)
    shared = key("add", "shared", "--keys", keys, "--scope", "predict,capture")
    flags = ["--capture", str(tmp_path / "kept"), "--keys", str(keys)]
    server = start_server(repository, tmp_path, flags)
    for token, names in ((private, ["private"]), (shared, ["shared", "other"])):
        for name in names:
            headers = {"authorization": f"Bearer {token}", "x-request-id": name}
            predict(server, "all", headers=headers)
    assert server.stop() == 0
    ids = [each.about()["request_id"] for each in captures(tmp_path / "kept")]
    assert sorted(ids) == ["other", "shared"]


def test_wrong_commands(demo_repository, fovea, tmp_path):
    rule = ("--capture-rule", "scores 0.1..0.2")
    for command, words in (
        (("serve", demo_repository, "--capture", tmp_path, *rule), "'score'"),
        (("serve", demo_repository, *rule), "--capture DIR"),
        (("capture", "purge", tmp_path, "--json"), "--yes"),
        (("capture", "export", tmp_path, "--out", tmp_path / "out"), "nothing to export"),
    ):
        code, _, err = fovea(*command)
        assert (code, words in err) == (2, True), err
    code, out, _ = fovea("capture", "ls", tmp_path, "--json")
    assert (code, json.loads(out)) == (0, {"captures": []})
