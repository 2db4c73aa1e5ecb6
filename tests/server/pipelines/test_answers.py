"""A pipeline on every route: one answer, whoever asks for it how."""

import csv
import json
from dataclasses import replace

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from onnx import helper
from tests.built import build
from tests.client.test_arrays import SUPERVISION
from tests.e2e.conftest import images
from tests.e2e.results import AS_IT_IS, IMAGES, averaged
from tests.engines.tiny import constant, save
from tests.keyed import until
from tests.listed import check_listed
from tests.server.pipelines.conftest import write_pipeline
from tests.server.registries import serving
from tests.serving import start_server

from fovea_client import Box, Client, as_json
from fovea_engines.build.plan import BuildPlan
from fovea_engines.results.detections import Detections
from fovea_preprocess.image import decode_image
from fovea_server.http.v1.schemas import PredictAnswer
from fovea_server.pipelines.recipe import StageTable
from fovea_server.pipelines.stages import BoundStage

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(server, scene):
    with Client(server.url) as client:
        return client.predict("plates", scene)


def crop_of(scene, box, padding):
    pixels = decode_image(scene).pixels
    wide, high = padding * (box.x2 - box.x1), padding * (box.y2 - box.y1)
    top, left = max(0, int(np.floor(box.y1 - high))), max(0, int(np.floor(box.x1 - wide)))
    part = pixels[top : int(np.ceil(box.y2 + high)), left : int(np.ceil(box.x2 + wide))]
    return cv2.imencode(".png", part[..., ::-1])[1].tobytes()


def test_objects_have_what_the_models_say_of_their_crops(server, scene, found):
    assert len(found.detections) > 1
    with Client(server.url) as client:
        alone = client.predict("digits", scene).detections
        for each, plain in zip(found.detections, alone, strict=True):
            assert each.box == plain.box
            padded = crop_of(scene, each.box, 0.1)
            assert each.attributes == client.predict("attributes", padded).image.attributes
            assert each.embedding == client.predict("embedding", padded).image.embedding
            exact = crop_of(scene, each.box, 0)
            if each.score >= 0.5:
                assert each.text == client.predict("reading", exact).image.reading
            if each.class_name in "1234567":
                assert each.classes == client.predict("classes", exact, top_k=2).classes
            assert each.error is None
    assert any(each.classes for each in found.detections)
    assert any(each.text for each in found.detections)


def test_json_keeps_to_its_schema(server, scene, found):
    answer = httpx.post(server.predict_url("plates"), content=scene).json()
    PredictAnswer.model_validate(answer, strict=True)
    assert answer["task"] == "detect"
    assert as_json(found.image) == answer["images"][0]
    stages = answer["timing_ms"]["stages"]
    assert [*stages] == ["digits", "attributes", "digit", "reading", "embedding"]
    assert stages == found.timing_ms.stages | stages
    assert all(0 <= ms <= answer["timing_ms"]["total"] for ms in stages.values())


def test_several_images_and_a_broken_one(server, scene, found):
    sent = [("file", scene), ("file", b"no image"), ("file", scene)]
    first, broken, last = httpx.post(server.predict_url("plates"), files=sent).json()["images"]
    assert first == last == as_json(found.image)
    assert broken["error"]["code"] == "invalid_image"


@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_tensors(server, scene, found, protocol):
    port = server.port if protocol is http_client else server.grpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
        answer = client.infer("plates", images(protocol, scene, scene, name="images"))
    check_listed(server, "plates", answer)
    for row in answer.as_numpy("findings"):
        for text, each in zip(row, as_json(found.image)["detections"], strict=True):
            more = json.loads(text)
            assert more == {name: each[name] for name in more}
            assert "embedding" in more


def test_an_image_without_objects(server):
    grey = cv2.imencode(".png", np.full((64, 64, 3), 127, np.uint8))[1].tobytes()
    answer = httpx.post(server.predict_url("plates"), content=grey).json()
    assert answer["images"][0]["detections"] == []
    assert [*answer["timing_ms"]["stages"]] == ["digits"]
    with http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        answer = client.infer("plates", images(http_client, grey, name="images"))
    assert answer.as_numpy("findings").shape == (1, 0)


def test_tensors_cannot_be_cut(server):
    given = http_client.InferInput("images", [1, 3, 320, 320], "FP32")
    given.set_data_from_numpy(np.zeros((1, 3, 320, 320), np.float32))
    with (
        http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
        pytest.raises(Exception, match="'images'"),
    ):
        client.infer("plates", [given])


def test_another_name_of_the_input_is_told(server, scene):
    with (
        http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
        pytest.raises(Exception, match="'IMAGE'"),
    ):
        client.infer("plates", images(http_client, scene, name="IMAGE"))


def test_options_are_those_of_the_detector(server, scene, found):
    with Client(server.url) as client:
        best = client.predict("plates", scene, max_det=1).detections
        tiled = client.predict("plates", scene, tile="2x1").detections
    assert best == found.detections[:1]
    assert all(each.embedding for each in tiled)
    answer = httpx.post(f"{server.predict_url('plates')}?top_k=1", content=scene)
    assert answer.status_code == 422
    said = answer.json()["error"]["message"]
    assert said.startswith("stage 'digits': top_k has no effect")
    assert "pipeline.toml" in said


def test_a_picture_names_what_was_found(server, scene, found):
    pictures = {}
    for name in ("digits", "plates"):
        answer = httpx.post(f"{server.url}/v1/models/{name}/annotate", content=scene)
        assert answer.headers["content-type"] == "image/jpeg"
        pictures[name] = decode_image(answer.content).pixels
    assert (pictures["digits"] != pictures["plates"]).any()
    first = found.detections[0]
    assert first.notes[:2] == tuple(one.classes[0].class_name for one in first.attributes)
    assert ", ".join(first.notes) in replace(found).image._repr_html_()


def test_the_command_writes_it(server, scene, found, tmp_path, fovea):
    (tmp_path / "a.jpg").write_bytes(scene)
    asked = ["predict", "plates", "a.jpg", "--url", server.url, "--out", "out"]
    code, _, err = fovea(*asked, "--format", "csv,coco,annotated")
    assert code == 0, err
    with (tmp_path / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    annotations = json.loads((tmp_path / "out" / "predictions.json").read_text())["annotations"]
    for row, annotation, each in zip(rows, annotations, found.detections, strict=True):
        first = each.attributes[0]
        assert row["attributes"].startswith(f"{first.name}: {first.classes[0].class_name}; ")
        assert row["text"] == annotation.get("text", "") == (each.text.text if each.text else "")
        vector = each.embedding.vector.tolist()
        assert json.loads(row["embedding"]) == annotation["embedding"] == vector
        assert annotation.get("classes", {}) == {c.class_name: c.score for c in each.classes}


def test_supervision_has_it_beside_the_names(found, monkeypatch):
    if not SUPERVISION.exists():
        pytest.skip(f"{SUPERVISION} is absent: `make test-real` installs it")
    monkeypatch.syspath_prepend(str(SUPERVISION))
    data = found.image.to_supervision().data
    for at, each in enumerate(found.detections):
        assert data["text"][at] == (each.text.text if each.text else None)
        assert data["embedding"][at] == each.embedding.vector.tolist()
        kinds = [one.name for one in each.attributes]
        assert list(data["attributes"][at]) == kinds
        assert data["classes"][at] == ({c.class_name: c.score for c in each.classes} or None)


def test_the_command_runs_it_without_a_server(repository, scene, found, tmp_path, fovea):
    (tmp_path / "a.jpg").write_bytes(scene)
    asked = ["predict", "plates", tmp_path / "a.jpg", "--repository", repository]
    code, out, err = fovea(*asked, "--json")
    assert code == 0, err
    [image] = json.loads(out)["images"]
    assert image["detections"] == as_json(found.image)["detections"]
    code, out, err = fovea(*asked)
    assert code == 0, err
    assert "stage results" in out
    assert found.detections[0].attributes[0].classes[0].class_name in out
    write_pipeline(repository, "plates", '[[stages]]\nmodel = "digits"\n[[stages]]\nmodel = "none"')
    code, _, err = fovea(*asked)
    assert code == 1
    assert "none" in err


def test_the_model_says_what_it_is_made_of(server):
    with Client(server.url) as client:
        model = client.model("plates")
        assert model.made_of == ("digits", "attributes", "classes", "reading", "embedding")
        assert model.labels == client.model("digits").labels
        assert client.model("digits").made_of == ()


def test_metrics_and_one_line_of_the_log(server, scene):
    def count(name, text):
        line = f'nv_inference_count{{model="{name}",version="1"}} '
        return float(text.partition(line)[2].partition("\n")[0])

    url = f"http://127.0.0.1:{server.metrics_port}/metrics"
    before, named = httpx.get(url).text, {"x-request-id": "one-line"}
    answer = httpx.post(server.predict_url("plates"), content=scene, headers=named)
    objects = answer.json()["images"][0]
    after = httpx.get(url).text
    grown = {name: count(name, after) - count(name, before) for name in ("plates", "attributes")}
    assert grown == {"plates": 1, "attributes": len(objects["detections"])}
    until(lambda: "one-line" in server.log.read_text())
    assert server.log.read_text().count("one-line") == 1


def test_a_crop_that_fails_is_of_its_object_alone(repository, scene, tmp_path):
    """The vector of a crop as light as the first object is NaN."""
    with serving(repository) as registry:
        engine = registry.find("digits").engine
        boxes = engine.detect(decode_image(scene).pixels).boxes
    levels = [decode_image(crop_of(scene, Box(*box), 0)).pixels.mean() / 255 for box in boxes]
    first, *others = levels
    assert min(abs(level - first) for level in others) > 0.01
    nodes, weights, _ = averaged(16, 0)
    weights += [constant("first", np.float32(first)), constant("near", np.float32(0.005**2))]
    nodes += [
        helper.make_node("ReduceMean", ["colour"], ["light"], axes=[1]),
        helper.make_node("Sub", ["light", "first"], ["more"]),
        helper.make_node("Mul", ["more", "more"], ["apart"]),
        helper.make_node("Sub", ["apart", "near"], ["beyond"]),
        helper.make_node("Sqrt", ["beyond"], ["root"]),
        helper.make_node("Mul", ["mixed", "root"], ["embedding"]),
    ]
    outputs = [("embedding", ["batch", 16])]
    source = save(tmp_path / "light.onnx", nodes, IMAGES, outputs, weights)
    build(BuildPlan(source, "light", repository, "onnxruntime", preprocess=AS_IT_IS))
    text = (
        '[[stages]]\nmodel = "digits"\n[[stages]]\nmodel = "light"\n[[stages]]\nmodel = "reading"'
    )
    write_pipeline(repository, "plates", text)
    server = start_server(repository, tmp_path)
    with Client(server.url) as client:
        found = client.predict("plates", scene).detections
    picture = httpx.post(f"{server.url}/v1/models/plates/annotate", content=scene)
    assert picture.status_code == 200
    assert server.stop() == 0
    assert [each.error is not None for each in found] == [True] + [False] * len(others)
    for each in found:
        assert each.text is not None
        if each.error is None:
            assert each.embedding is not None
        else:
            assert each.error.code == "not_finite"
            assert each.error.message.startswith("stage 'light': output embedding of light is NaN")


def test_a_pipeline_of_a_pipeline_in_a_queue_of_one(repository, scene, found, tmp_path):
    for name, first, last in (("inner", "digits", "reading"), ("plates", "inner", "attributes")):
        text = f'[[stages]]\nmodel = "{first}"\n[[stages]]\nmodel = "{last}"\n'
        write_pipeline(repository, name, text + "padding = 0.1\n")
    server = start_server(repository, tmp_path, ["--max-queue=1"])
    with Client(server.url) as client:
        own = client.predict("plates", scene).detections
    assert server.stop() == 0
    assert [each.attributes for each in own] == [each.attributes for each in found.detections]
    assert all(each.text for each in own)


def test_with_blur_no_text_and_no_vector_is_kept(repository, tmp_path, scene):
    (repository / "plates" / "fovea.toml").write_text(
        '[capture]\nrules = ["rate 100%"]\nblur = "digits"\n'
    )
    kept = tmp_path / "kept"
    server = start_server(repository, tmp_path, ["--capture", str(kept)])
    answer = httpx.post(server.predict_url("plates"), content=scene, timeout=60).json()
    assert any("text" in each for each in answer["images"][0]["detections"])
    until(lambda: any(kept.rglob("predictions.json")))
    assert server.stop() == 0
    [file] = kept.rglob("predictions.json")
    document = json.loads(file.read_text())
    objects = document["info"]["result"]["detections"]
    assert len(objects) == len(answer["images"][0]["detections"]) > 0
    assert any("attributes" in each for each in objects)
    assert not any(each.keys() & {"text", "embedding"} for each in objects)
    written = document["annotations"]
    assert not any(each.keys() & {"text", "embedding"} for each in written)


@pytest.mark.parametrize("crop", ["box", "rotated"])
def test_objects_that_lie_on_each_other_do_not_fill_the_memory(crop):
    """Hundreds of boxes as large as the image are found where scores of .001 count."""
    image = np.arange(300 * 400 * 3, dtype=np.uint8).reshape(300, 400, 3)
    rows = np.tile(np.float32([200, 150, 400, 300, 0]), (200, 1))
    boxes = np.tile(np.float32([0, 0, 400, 300]), (200, 1))
    found = Detections(boxes, np.ones(200, np.float32), np.zeros(200, np.int32), rotated=rows)
    table = StageTable(model="m", crop=crop, padding=2.0)
    stage = BoundStage(table, "", None, (64, 64), {}, "classes")
    crops = stage.crops(image, found)
    assert len(crops) == 200
    held = sum(each.nbytes for each in crops.values() if each.base is None)
    assert held <= 2.1 * image.nbytes
    if crop == "box":
        assert all((each == image).all() for each in crops.values())


def test_many_large_crops_are_cut_out_of_a_smaller_image():
    """Three hundred of an image of 48 megapixels took a minute and a half."""
    image = np.tile(np.arange(240, dtype=np.uint8).reshape(1, 240, 1), (2400, 20, 3))
    boxes = np.tile(np.float32([0, 0, 4800, 2400]), (40, 1))
    boxes[0] = 10, 20, 300, 220
    found = Detections(boxes, np.ones(40, np.float32), np.zeros(40, np.int32))
    stage = BoundStage(StageTable(model="m"), "", None, (100, 100), {}, "classes")
    crops = stage.crops(image, found)
    assert (crops[0] == image[20:220, 10:300]).all()
    for n in range(1, 40):
        assert crops[n].shape == (300, 600, 3)
        assert (crops[n] == cv2.resize(image, (600, 300), interpolation=cv2.INTER_AREA)).all()
