"""Label Studio's choices and texts of regions: they are what a pipeline says of its objects."""

import base64

import cv2
import pytest
from tests.built import build
from tests.rapidocr import PREPROCESS
from tests.server.integrations.labelling import IMAGE, VEHICLE, config, label, post, predict
from tests.server.pipelines import pages
from tests.server.pipelines.conftest import write_pipeline
from tests.server.pipelines.pages import MODELS
from tests.serving import start_server

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.real

TYPES = ("car", "van", "truck", "bus")
COLOURS = ("white", "gray", "yellow", "red", "green", "blue", "black")
STREET = """
[[stages]]
model = "yolov8n"
[[stages]]
model = "vehicle"
classes = ["car", "bus", "truck"]
[[stages]]
model = "person"
classes = ["person"]
"""
PAGE = """
[[stages]]
model = "find"
[[stages]]
model = "read"
crop = "rotated"
"""
RAW = {"fit": "stretch", "channels": "BGR", "scale": 1.0, "mean": (0.0,) * 3, "std": (1.0,) * 3}


def choices(name, options, **attributes):
    inside = [f'<Choice value="{each}"/>' for each in options]
    return config("Choices", *inside, **attributes).replace('name="c"', f'name="{name}"')


def joined(*configs):
    """One labelling configuration with the controls of several."""
    starts, ends = f"<View>{IMAGE}", "</View>"
    inside = "".join(each.removeprefix(starts).removesuffix(ends) for each in configs)
    return f"{starts}{inside}{ends}"


def inline(pixels):
    data = cv2.imencode(".png", pixels)[1].tobytes()
    return data, f"data:image/png;base64,{base64.b64encode(data).decode()}"


@pytest.fixture(scope="module")
def server(shared, tmp_path_factory):
    """A server with a pipeline for streets, and one for pages where RapidOCR is installed."""
    repository, models = tmp_path_factory.mktemp("said"), shared / "models"
    person = models / "chains" / "person-reidentification-retail-0267.onnx"
    vehicle = models / "chains" / "vehicle-attributes-recognition-barrier-0039.onnx"
    plans = {
        "yolov8n": (models / "yolov8n.onnx", {}),
        "vehicle": (vehicle, {"labels": TYPES + COLOURS}),
        "person": (person, {"preprocess": RAW}),
    }
    write_pipeline(repository, "street", STREET)
    if MODELS["read"].exists():
        find = {"family": "ppocr-det", "size": (480, 640), "preprocess": PREPROCESS}
        plans["find"] = MODELS["find"], find
        plans["read"] = MODELS["read"], {"size": (48, 480)}
        write_pipeline(repository, "page", PAGE)
    samples = tmp_path_factory.mktemp("samples")
    (samples / "bus.jpg").symlink_to(shared / "data" / "bus.jpg")
    for name, (source, more) in plans.items():
        # ONNX Runtime makes NaN of the vectors.
        backend = "openvino" if name == "person" else "onnxruntime"
        build(BuildPlan(source, name, repository, backend, images=samples, **more))
    running = start_server(repository, tmp_path_factory.mktemp("log"), ("--api=label-studio",))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def street(shared):
    """A frame with cars, and a photograph with a bus and people."""
    video = cv2.VideoCapture(str(shared / "data" / "video" / "car-detection.mp4"))
    video.set(cv2.CAP_PROP_POS_FRAMES, 205)
    return video.read()[1], cv2.imread(str(shared / "data" / "bus.jpg"))


def test_choices_of_regions_and_vectors(run, server, street):
    boxes = config("RectangleLabels", VEHICLE, label("Person"))
    colours = choices("color", COLOURS, perRegion="true", whenTagName="c")
    kinds = choices("kind", TYPES, perRegion="true", choice="multiple", model_score_threshold="0")
    xml = joined(boxes, colours, kinds)
    seen = {"color": 0, "kind": 0, "vector": 0}
    with Client(server.url) as client:
        for pixels in street:
            data, address = inline(pixels)
            [prediction] = predict(server, "street", xml, address)
            [[wrong, _]] = run("with_label_studio_sdk.py", [[xml, prediction]])
            assert wrong == []
            found = client.predict("street", data).detections
            wanted = [each for each in found if each.class_name in ("person", "car", "bus")]
            regions = [each for each in prediction["result"] if each["from_name"] == "c"]
            for region, each in zip(regions, wanted, strict=True):
                said = {
                    other["from_name"]: other
                    for other in prediction["result"]
                    if other["id"] == region["id"] and other is not region
                }
                attributes = {one.name: one.classes for one in each.attributes}
                if each.class_name == "person":
                    assert said == {}
                    assert region["meta"]["embedding"]["norm"] == each.embedding.norm
                    vector = base64.b64decode(region["meta"]["embedding"]["data"])
                    assert vector == each.embedding.vector.astype("<f4").tobytes()
                    seen["vector"] += 1
                    continue
                assert "meta" not in region
                colour, *_ = attributes["color"]
                assert said["color"]["value"]["choices"] == [colour.class_name]
                assert said["color"]["score"] == colour.score
                assert said["kind"]["value"]["choices"] == [
                    one.class_name for one in attributes["type"]
                ]
                for name, one in said.items():
                    assert one["type"] == "choices"
                    assert one["value"]["x"] == region["value"]["x"]
                    seen[name] += 1
    assert seen == {"color": 2, "kind": 2, "vector": 4}


def test_choices_of_a_whole_image(run, server, street):
    xml = joined(choices("color", COLOURS), choices("type", TYPES))
    [prediction] = predict(server, "vehicle", xml, inline(street[0])[1])
    with Client(server.url) as client:
        found = client.predict("vehicle", inline(street[0])[0]).image.attributes
    assert {r["from_name"]: (r["value"]["choices"], r["score"]) for r in prediction["result"]} == {
        each.name: ([each.classes[0].class_name], each.classes[0].score) for each in found
    }
    [[wrong, _]] = run("with_label_studio_sdk.py", [[xml, prediction]])
    assert wrong == []


def test_texts(run, server):
    if not MODELS["read"].exists():
        pytest.skip(f"{MODELS['read']} is absent: `make test-real` installs it")
    data, address = inline(pages.drawn(0))
    whole = config("TextArea")
    boxes = config("RectangleLabels", label("Text")).replace('name="c"', 'name="b"')
    each = joined(boxes, config("TextArea", perRegion="true", model_score_threshold="0.5"))
    line, line_address = inline(pages.drawn(0)[20:70])
    with Client(server.url) as client:
        lines = client.predict("page", data).detections
        reading = client.predict("read", line).image.reading
    [prediction] = predict(server, "page", each, address)
    [one] = predict(server, "read", whole, line_address)
    results = list(zip((each, whole), (prediction, one), strict=True))
    assert [wrong for wrong, _ in run("with_label_studio_sdk.py", results)] == [[], []]
    texts = {r["id"]: r for r in prediction["result"] if r["type"] == "textarea"}
    boxes = [r for r in prediction["result"] if r["type"] == "rectanglelabels"]
    assert len(boxes) == len(lines) >= 5
    for box, found in zip(boxes, lines, strict=True):
        assert texts[box["id"]]["value"]["text"] == [found.text.text]
        assert texts[box["id"]]["score"] == found.text.score
    assert [r["value"] for r in one["result"]] == [{"text": [reading.text]}]


def test_controls_of_regions_alone_do_not_suit(server):
    for model, xml, says in (
        ("street", choices("color", COLOURS, perRegion="true"), "has Choices (perRegion)"),
        ("vehicle", choices("color", COLOURS, perRegion="true"), "can fill in Choices of an Image"),
        ("person", choices("color", COLOURS), "can fill in no control"),
    ):
        answer = post(server, model, "validate", config=xml)
        assert answer.status_code == 400
        assert says in answer.json()["error"]


def test_labels_that_are_drawn_are_regions_whatever_else_they_are(server, street):
    boxes = config("RectangleLabels", VEHICLE, perRegion="true")
    outlines = config("PolygonLabels", VEHICLE, perRegion="true").replace('name="c"', 'name="p"')
    for xml in (boxes, joined(boxes, outlines)):
        [prediction] = predict(server, "yolov8n", xml, inline(street[0])[1])
        assert {each["type"] for each in prediction["result"]} == {"rectanglelabels"}
