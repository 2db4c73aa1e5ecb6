"""Every task over every route: one value, whoever asks for it how.

The models of objects and classes are the demo's; the others are tiny, and what they find of an
image can be computed here.
"""

import csv
import json
import re
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from PIL import Image
from tests.built import build
from tests.conftest import DEMO, ROOT
from tests.e2e.conftest import images
from tests.e2e.results import AS_IT_IS, BAR, BARS, COLOUR, DIGITS, FLAT, MODELS, SCENES, png
from tests.listed import check_listed, check_tensors
from tests.run_lengths import decoded
from tritonclient.utils import InferenceServerException

from fovea_client import TASKS, ImageResult, ServerError, as_json
from fovea_engines.backends.registry import CPU_BACKENDS
from fovea_engines.build.plan import BuildPlan
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.registry import RESULT_OF
from fovea_preprocess.image import decode_image
from fovea_server.http.v1.schemas import PredictAnswer
from fovea_server.tracking.tracker import Tracker, Tuning

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for name, model in MODELS.items():
        if isinstance(model.write, str):
            (folder / "r" / name / "1").mkdir(parents=True)
            (folder / "r" / name / "1" / "model.onnx").symlink_to(DEMO / model.write)
            continue
        source = model.write(folder / f"{name}.onnx")
        plan = {"preprocess": AS_IT_IS} | model.given
        build(BuildPlan(source, name, folder / "r", model.backend, **plan))
    return folder / "r"


@pytest.fixture(params=MODELS)
def any_name(request):
    return request.param


@pytest.fixture(params=[name for name, model in MODELS.items() if model.task != "tensors"])
def name(request):
    """The name of a model whose head is known."""
    return request.param


def ask(server, name: str, image: bytes, **options: object) -> dict[str, Any]:
    """The answer for an image, which has all fields of the schema and no others."""
    response = httpx.post(server.predict_url(name), content=image, params=options)
    assert response.status_code == 200, response.text
    answer = response.json()
    read = PredictAnswer.model_validate(answer, strict=True)
    assert read.model_dump(exclude_unset=True) == answer
    [found] = answer["images"]
    return found


def input_of(server, name: str) -> str:
    return httpx.get(f"{server.url}/v2/models/{name}").json()["inputs"][0]["name"]


def test_all_sides_have_the_same_tasks():
    assert {model.task for model in MODELS.values()} == {*TASKS}
    named = get_args(PredictAnswer.model_fields["task"].annotation)
    fields = {task: kind.field for task, kind in RESULT_OF.items()} | {"tensors": "tensors"}
    assert named == (*RESULT_OF, "tensors")
    assert fields == TASKS
    page = (ROOT / "server/fovea_server/ui/tasks.js").read_text()
    rows, kinds = page.split("export const KINDS")
    of_page = dict(re.findall(r'^  (\w+): \{ label: ".*", kind: "(\w+)".*\},$', rows, re.M))
    assert {**of_page, "tensors": "tensors"} == TASKS
    assert set(re.findall(r"^  (\w+): \{$", kinds, re.M)) == set(of_page.values())


def test_json_and_the_client(server, client, any_name):
    model = MODELS[any_name]
    image, other = model.images
    assert client.model(any_name).task == model.task
    for options in ({}, *model.forms):
        found = ask(server, any_name, image, **options)
        assert found[TASKS[model.task]], "something is found"
        if "track" in options:
            continue  # a frame comes once
        answer = client.predict(any_name, image, **options)
        assert (answer.task, answer.version) == (model.task, "1")
        found.pop("reason", None)
        assert as_json(answer.image) == found, "the client has all of its fields"
    first, second = client.predict(any_name, [image, other]).images
    assert as_json(first) != as_json(second)
    if first.lines:
        assert any(model.line in line for line in first.lines)
        assert model.line in first._repr_html_()
    model.check(client.predict(any_name, image).image)


def test_several_images_and_a_broken_one(server, any_name):
    image, other = MODELS[any_name].images
    sent = [("file", image), ("file", b"no image"), ("file", other), ("file", image)]
    answer = httpx.post(server.predict_url(any_name), files=sent).json()
    PredictAnswer.model_validate(answer, strict=True)
    first, broken, second, last = answer["images"]
    assert first == last != second
    assert broken["error"]["code"] == "invalid_image"


@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_tensors(server, client, name, protocol):
    model = MODELS[name]
    # Images of different sizes share a tensor, as maps.
    results = client.predict(name, [*model.images], mask="png" if name == "semantic" else "rle")
    port = server.port if protocol is http_client else server.grpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as triton:
        sent = images(protocol, *model.images, name=input_of(server, name))
        found = triton.infer(name, sent)
    check_listed(server, name, found)
    check_tensors(found, results.images)


def test_a_picture(server, client, name):
    image = MODELS[name].images[0]
    for kind in ("image/png", "image/jpeg", "image/webp"):
        answer = httpx.post(server.predict_url(name), content=image, headers={"accept": kind})
        assert answer.headers["content-type"] == kind
        with Image.open(BytesIO(answer.content)) as file:
            assert file.format == kind.removeprefix("image/").upper()
            if name == "picture":
                assert np.abs(np.asarray(file) - np.array(COLOUR) / 2).mean() < 4
    result = client.predict(name, image).image
    with Image.open(BytesIO(client.annotate(name, image, "image/png"))) as file:
        pixels = np.asarray(file)
    if name == "picture":
        np.testing.assert_array_equal(pixels, result.picture.pixels)
    elif name == "saliency":
        np.testing.assert_array_equal(pixels[..., 3], result.saliency.alpha)
        np.testing.assert_array_equal(pixels[..., :3], BAR)
    else:
        changed = (pixels != decode_image(image).pixels).any(axis=2)
        assert all(changed[round(y), round(x)] for x, y in drawn_places(result))
        assert all(changed[one.mask.pixels].mean() > 0.9 for one in result.detections if one.mask)
        assert changed[:10, :40].any() or result.detections


def drawn_places(result: ImageResult) -> list[tuple[float, float]]:
    """Points x y of each object: its keypoints, or the middle of a side."""
    found = []
    for one in result.detections:
        found += [(point.x, point.y) for point in one.keypoints if min(point.x, point.y) >= 0]
        if one.corners:
            first, second = one.corners[1:3]
            found.append(((first.x + second.x) / 2, (first.y + second.y) / 2))
        elif not one.keypoints:
            found.append((one.box.x1, (one.box.y1 + one.box.y2) / 2))
    return found


@pytest.mark.parametrize("remote", [False, True], ids=["here", "server"])
def test_the_command(server, repository, name, remote, tmp_path, fovea):
    model = MODELS[name]
    (tmp_path / "a.png").write_bytes(model.images[0])
    where = ["--url", server.url] if remote else ["--repository", repository]
    words = ["predict", name, "a.png", *where]
    code, shown, err = fovea(*words)
    assert code == 0, err
    assert model.line in shown
    document = json.loads(fovea(*words, "--json")[1])
    answer = ask(server, name, model.images[0])
    assert document["images"] == [{"file": "a.png"} | answer]
    formats = "annotated,csv,jsonl" if model.columns else "annotated,jsonl"
    code, _, err = fovea(*words, "--out", "out", "--format", formats)
    assert code == 0, err
    [line] = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    assert json.loads(line).items() >= ({"file": "a.png"} | answer).items()
    [file] = (tmp_path / "out" / "annotated").iterdir()
    drawn, plain = decode_image(file.read_bytes()).pixels, decode_image(model.images[0]).pixels
    assert drawn.shape != plain.shape or (np.abs(drawn.astype(int) - plain) > 30).any()
    if not model.columns:
        code, _, err = fovea(*words, "--out", "out", "--format", "csv")
        assert (code, "use one of annotated, jsonl" in err) == (2, True)
        code, _, err = fovea(*words, "--out", "out", "--format", "annotated", "--mask", "none")
        assert (code, "use one of jsonl" in err) == (2, True)
        return
    header, *rows = csv.reader((tmp_path / "out" / "predictions.csv").read_text().splitlines())
    assert tuple(header)[: len(model.columns) + 1] == ("file", *model.columns)
    assert rows
    assert all(len(row) == len(header) for row in rows)


def boxes_found(client, name, folder: Path, predict) -> list[object]:
    """Boxes of COCO, as the command writes them."""
    (folder / "images").mkdir()
    for number, image in enumerate(MODELS[name].images):
        (folder / "images" / f"{number}.png").write_bytes(image)
    code, _, err = predict(name, folder / "images", "--out", folder / "found", "--format", "coco")
    assert code == 0, err
    return ["--data", folder / "found" / "predictions.json", "--images", folder / "images"]


def corners_found(client, name, folder: Path, predict=None) -> list[object]:
    """Lines of YOLO, with the corners of each object."""
    for each in ("images", "labels"):
        (folder / "data" / each).mkdir(parents=True)
    for number, image in enumerate(MODELS[name].images):
        result = client.predict(name, image).image
        size = result.width, result.height
        (folder / "data" / "images" / f"{number}.png").write_bytes(image)
        corners = [[(each.x, each.y) for each in one.corners] for one in result.detections]
        lines = [
            " ".join(map(str, (one.class_id, *(np.array(each) / size).clip(0, 1).ravel())))
            for one, each in zip(result.detections, corners, strict=True)
        ]
        (folder / "data" / "labels" / f"{number}.txt").write_text("\n".join(lines))
    return ["--data", folder / "data"]


def folders_of_classes(client, name, folder: Path, predict=None) -> list[object]:
    """Images in the folder of the class of the second."""
    best = client.predict(name, MODELS[name].images[1]).image.classes[0]
    (folder / "data" / best.class_name).mkdir(parents=True)
    for number, image in enumerate(MODELS[name].images):
        (folder / "data" / best.class_name / f"{number}.png").write_bytes(image)
    return ["--data", folder / "data"]


def maps_of_classes(client, name, folder: Path, predict=None) -> list[object]:
    for each in ("masks", "images"):
        (folder / each).mkdir()
    for number, image in enumerate(MODELS[name].images):
        ids = client.predict(name, image, mask="png").image.semantic.class_ids
        cv2.imwrite(str(folder / "masks" / f"{number}.png"), ids)
        (folder / "images" / f"{number}.png").write_bytes(image)
    return ["--data", folder / "masks", "--images", folder / "images"]


def folders_of_things(client, name, folder: Path, predict=None) -> list[object]:
    """Two images of each of two colours, and one that is nearer to the others."""
    for colour in ((200, 100, 50), (40, 120, 220)):
        (folder / "data" / str(colour[0])).mkdir(parents=True)
        for size in (20, 30):
            file = folder / "data" / str(colour[0]) / f"{size}.png"
            file.write_bytes(png(np.full((size, size, 3), colour)))
    (folder / "data" / "40" / "other.png").write_bytes(png(np.full((8, 8, 3), (200, 101, 50))))
    return ["--data", folder / "data"]


ACCURACY = {
    **dict.fromkeys(("detect", "segment", "pose"), (boxes_found, "map50_95", 1)),
    **dict.fromkeys(("obb", "text"), (corners_found, "map50_95", 1)),
    "classify": (folders_of_classes, "top1", 0.5),
    "semantic": (maps_of_classes, "miou", 1),
    "embedding": (folders_of_things, "recall1", 0.8),
}


@pytest.mark.parametrize("name", ACCURACY)
def test_accuracy(server, client, repository, name, tmp_path, fovea):
    """Labels are what a model finds, and the figures those of a perfect one, here and there.

    Tables of texts and attributes, and pictures, are in `server/offline`.
    """
    given, figure, value = ACCURACY[name]
    predict = partial(fovea, "predict", "--url", server.url)
    words = ["eval", name, *given(client, name, tmp_path, predict), "--json"]
    figures = []
    for where in (("--repository", repository), ("--url", server.url)):
        code, out, err = fovea(*words, *where)
        assert code == 0, err
        figures.append(json.loads(out))
    assert figures[0] == figures[1]
    assert figures[0][figure] == pytest.approx(value, abs=0.01)


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [("classify", ["--images", "data"], "--images"), ("saliency", [], "saliency")],
)
def test_labels_that_measure_nothing(server, client, repository, name, more, said, tmp_path, fovea):
    words = ["eval", name, *folders_of_classes(client, "classify", tmp_path), *more]
    for where in (("--repository", repository), ("--url", server.url)):
        code, _, err = fovea(*words, *where)
        assert (code, said in err) == (2, True)


OF_OBJECTS = {"conf": 0.5, "iou": 0.5, "max_det": 3, "agnostic": True, "tile": 640}
WITH_CLASSES = ("classify", "semantic", "attributes")


def test_options_of_other_tasks_are_refused(server, client, name, fovea, repository, tmp_path):
    task, image = MODELS[name].task, MODELS[name].images[0]
    usual = {"conf": 0.25, "iou": 0.7, "max_det": 300, "agnostic": False}
    ask(server, name, image, **usual)
    if TASKS[task] == "detections":
        assert ask(server, name, image, conf=1)["detections"] == []
        return
    refused = OF_OBJECTS | ({} if task in WITH_CLASSES else {"classes": [0]})
    for option, value in refused.items():
        with pytest.raises(ServerError, match=f"{option} has no effect") as caught:
            client.predict(name, image, **{option: value})
        assert caught.value.status == 422
    if task in WITH_CLASSES:
        ask(server, name, image, classes=0)
    for protocol, port in ((http_client, server.port), (grpc_client, server.grpc_port)):
        with protocol.InferenceServerClient(f"127.0.0.1:{port}") as triton:
            sent = images(protocol, image, name=input_of(server, name))
            with pytest.raises(InferenceServerException, match="conf has no effect"):
                triton.infer(name, sent, parameters={"conf": "0.5"})
    (tmp_path / "a.png").write_bytes(image)
    code, _, err = fovea("predict", name, "a.png", "--conf", 0.5, "--repository", repository)
    assert (code, "conf has no effect" in err) == (2, True)


def test_a_classifier_answers_as_many_classes_as_are_asked_for(client):
    def ids(**options: object) -> list[int]:
        return [one.class_id for one in client.predict("classify", DIGITS[0], **options).classes]

    five = ids()
    assert ids(top_k=2) == five[:2]
    assert sorted(ids(top_k=1000)) == [*range(10)]
    assert ids(classes=["7", five[1]]) == sorted([7, five[1]], key=ids(top_k=10).index)
    for wrong, said in (({"conf": 0.9}, "top_k"), ({"top_k": 0}, "from 1 to 1000")):
        with pytest.raises(ServerError, match=said) as caught:
            ids(**wrong)
        assert (caught.value.status, caught.value.code) == (422, "invalid_option")


def test_forms_of_a_vector(client):
    usual, listed, raw = (
        client.predict("embedding", FLAT[0], **options).image.embedding
        for options in ({}, {"vector": "list"}, {"vector": "list", "normalize": False})
    )
    assert (usual.numbers, listed.data) == ((), None)
    assert usual.vector.tolist() == listed.vector.tolist()
    assert (usual.normalised, raw.normalised) == (True, False)
    assert np.linalg.norm(raw.vector) == pytest.approx(raw.norm, rel=1e-5)
    assert np.linalg.norm(listed.vector) == pytest.approx(1, rel=1e-5)
    with pytest.raises(ServerError, match="base64"):
        client.predict("embedding", FLAT[0], vector="hex")


def test_forms_of_masks(server, client):
    """Run lengths are as COCO reads them; polygons lack holes, and parts of a pixel."""
    lengths, outlined, files = (
        client.predict("segment", SCENES[0], mask=form).image.detections
        for form in ("rle", "polygon", "png")
    )
    answer = ask(server, "segment", SCENES[0])
    for index, one in enumerate(answer["detections"]):
        want = decoded(one["mask"])
        assert one["mask"]["size"] == [480, 640]
        assert (lengths[index].mask.pixels == want).all()
        assert (files[index].mask.pixels == want).all()
        corners = [np.array(each).reshape(-1, 2) - 0.5 for each in outlined[index].mask.polygons]
        drawn = np.zeros(want.shape, np.uint8)
        cv2.fillPoly(drawn, [each.astype(np.int32) for each in corners], 1)
        assert (drawn & want).sum() > 0.97 * want.sum() > 0.7 * drawn.sum()
    without = client.predict("segment", SCENES[0], mask="none").image.detections
    assert [each.box for each in without] == [each.box for each in lengths]
    assert not any(each.mask for each in without)
    with pytest.raises(ServerError, match="rle"):
        client.predict("segment", SCENES[0], mask="bitmap")


def test_forms_of_classes_of_pixels(client):
    ids = client.predict("semantic", BARS[0], mask="png").image.semantic.class_ids
    assert (ids == np.where(BAR[..., 0] > 100, 0, 2)).all()
    ground, bar = client.predict("semantic", BARS[0], mask="polygon").image.semantic.classes
    assert bar.mask.polygons == ((3.5, 5.5, 3.5, 8.5, 12.5, 8.5, 12.5, 5.5),)
    assert len(ground.mask.polygons) == 1
    bare = client.predict("semantic", BARS[0], mask="none").image.semantic
    assert [one.mask for one in bare.classes] == [None, None]
    with pytest.raises(ValueError, match='mask="png"'):
        _ = bare.class_ids
    red = client.predict("semantic", BARS[0], classes=["red", "green"], mask="png").image.semantic
    assert [one.class_name for one in red.classes] == ["red"]
    assert (red.class_ids == np.where(BAR[..., 0] > 100, 0, 255)).all()
    with pytest.raises(ServerError, match="mask=polygon has no effect"):
        client.predict("saliency", BARS[0], mask="polygon")


@pytest.mark.parametrize("name", ["embedding", "picture"])
def test_what_is_no_number_is_announced(server, client, name):
    black = png(np.zeros((8, 8, 3)))
    with pytest.raises(ServerError) as caught:
        client.predict(name, black)
    assert (caught.value.status, caught.value.code) == (500, "not_finite")
    with (
        http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as triton,
        pytest.raises(InferenceServerException, match="NaN or infinite"),
    ):
        triton.infer(name, images(http_client, black, name="images"))


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_rows_of_one_image_are_tensors(server, protocol, backend):
    """A model whose outputs have a row for each thing in an image takes one at a time."""
    name = f"places-{backend}"
    url = f"{server.url}/v2/models/{name}"
    assert httpx.get(f"{url}/config").json()["max_batch_size"] == 0
    [given], [output] = (httpx.get(url).json()[each] for each in ("inputs", "outputs"))
    assert (given["shape"], output["shape"]) == ([1, 3, 8, 8], [-1, 4])
    row = np.zeros((1, 3, 8, 8), given["datatype"].replace("FP", "float").lower())
    places = [[0, 0, 1, 2], [0, 2, 7, 5]]
    row[tuple(np.transpose(places))] = 1
    port = server.port if protocol is http_client else server.grpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as triton:
        sent = protocol.InferInput(given["name"], row.shape, given["datatype"])
        sent.set_data_from_numpy(row)
        assert triton.infer(name, [sent]).as_numpy("out").tolist() == places


def test_a_model_without_a_head_draws_nothing(client, repository, fovea, tmp_path):
    with pytest.raises(ServerError) as caught:
        client.annotate("tensors", BARS[0])
    assert caught.value.code == "invalid_request"
    (tmp_path / "a.png").write_bytes(BARS[0])
    code, _, err = fovea("predict", "tensors", "a.png", "--repository", repository)
    assert (code, "serves tensors only" in err) == (1, True)


TURNED_ROUND = {
    3: Image.Transpose.ROTATE_180,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("name", ["segment", "pose", "obb", "semantic"])
def test_results_are_of_the_upright_image(server, name):
    """Results are upright for every orientation of a lossless file."""
    upright = Image.open(BytesIO(MODELS[name].images[0]))
    want = ask(server, name, png(np.asarray(upright)))
    for orientation, undo in TURNED_ROUND.items():
        exif, file = Image.Exif(), BytesIO()
        exif[0x0112] = orientation
        upright.transpose(undo).save(file, "PNG", exif=exif)
        assert ask(server, name, file.getvalue()) == want | {"orientation": orientation}


FRAMES = 5


@pytest.mark.parametrize("name", ["segment", "pose", "obb"])
def test_ids_are_of_their_objects(server, name):
    """Ids are those of a tracker by hand; rotated boxes are tracked by their upright boxes."""
    scene = cv2.imdecode(np.frombuffer(SCENES[0], np.uint8), cv2.IMREAD_COLOR)
    tracker, tuning, seen = Tracker("bytetrack"), Tuning.of(PredictOptions(conf=0.4)), set()
    for number in range(FRAMES):
        frame = png(np.roll(scene, 4 * number, axis=1)[..., ::-1])
        plain = infer(server, name, frame, conf=0.4)
        given = {"track": "bytetrack", "stream_id": name, "frame": number}
        tracked = infer(server, name, frame, conf=0.4, **given)
        ids = tracked.pop("track_ids")
        assert tracked.keys() == plain.keys() >= {"boxes", "scores"}
        boxes = Detections(*(plain[each] for each in ("boxes", "scores", "class_ids")))
        by_hand = tracker.identify(boxes, None, tuning)
        assert ids.tolist() == np.where(by_hand.track_ids > 0, by_hand.track_ids, -1).tolist()
        for each in plain:
            np.testing.assert_array_equal(tracked[each], plain[each])
        seen |= set(ids.tolist()) - {-1}
    assert len(seen) > 2
    options = {"track": "sort", "stream_id": f"{name} json"}
    for _ in range(3):
        objects = ask(server, name, SCENES[0], **options)["detections"]
    ids = [each["track_id"] for each in objects if each["track_id"] is not None]
    assert len(set(ids)) == len(ids) > 1
    key = {"segment": "mask", "pose": "keypoints", "obb": "rotated"}[name]
    assert all(each[key] for each in objects)


def infer(server, name: str, image: bytes, **parameters: object) -> dict[str, np.ndarray]:
    """The tensors of the objects of an image, by name."""
    with grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as triton:
        sent = images(grpc_client, image, name=input_of(server, name))
        answer = triton.infer(name, sent, parameters=parameters)
    (count,) = answer.as_numpy("num_detections")
    names = [each.name for each in answer.get_response().outputs if each.name != "num_detections"]
    return {each: answer.as_numpy(each)[0, :count] for each in names}
