"""Models of images and texts: built, and asked by words over every route."""

import cv2
import httpx
import numpy as np
import pytest
from tests.engines.two_towers import image_vectors, text_vectors, two_towers
from tests.serving import start_server

from fovea_client import Client
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan

AS_IT_IS = {"fit": "stretch", "resample": "linear", "mean": (0.0,) * 3, "std": (1.0,) * 3}
LABELS = ("a red cat", "a green dog", "7")
COLOURS = [(200, 100, 50), (20, 30, 210)]
SHARES = np.array(COLOURS, np.float32) / 255
SCALE, BIAS = 20.0, -4.0


def picture(colour):
    return cv2.imencode(".png", np.full((8, 8, 3), colour[::-1], np.uint8))[1].tobytes()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    for name, options in {
        "clip": {"scale": SCALE},
        "siglip": {"scale": SCALE, "bias": BIAS},
    }.items():
        source = two_towers(folder / name, **options)
        build(BuildPlan(source, name, folder / "r", "onnxruntime", preprocess=AS_IT_IS))
    source = two_towers(folder / "halves", halves=True)
    build(
        BuildPlan(
            source,
            "halves",
            folder / "r",
            "onnxruntime",
            preprocess=AS_IT_IS,
            text=source.with_name("text.onnx"),
            tokenizer=source.with_name("tokenizer.json"),
        )
    )
    return folder / "r"


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    running = start_server(repository, tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


def _softmax(cosines):
    powers = np.exp(SCALE * cosines)
    return powers / powers.sum(axis=-1, keepdims=True)


def _check(result, scores):
    order = np.argsort(-scores)
    assert [each.class_name for each in result.classes] == [LABELS[at] for at in order]
    assert [each.class_id for each in result.classes] == order.tolist()
    np.testing.assert_allclose([each.score for each in result.classes], scores[order], atol=1e-4)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_images_are_classified_by_the_words_of_a_request(server, name):
    cosines = image_vectors(SHARES) @ text_vectors(*LABELS).T
    wanted = 1 / (1 + np.exp(-(SCALE * cosines + BIAS)))
    if name == "clip":
        wanted = _softmax(cosines)
    with Client(server.url) as client:
        found = client.predict(name, [picture(each) for each in COLOURS], labels=LABELS)
        assert found.task == "classify"
        best = client.predict(name, picture(COLOURS[0]), labels=LABELS, top_k=1).image
        vector = client.predict(name, picture(COLOURS[0])).image.embedding.vector
    for result, scores in zip(found.images, wanted, strict=True):
        _check(result, scores)
    assert best.classes == found.images[0].classes[:1]
    np.testing.assert_allclose(vector, image_vectors(SHARES[:1])[0], atol=1e-5)
    url = f"{server.url}/v1/models/{name}/predict?labels=a red cat,a green dog&labels=7"
    typed = httpx.post(url, content=picture(COLOURS[0])).json()
    assert [each["class_name"] for each in typed["images"][0]["classes"]] == [
        each.class_name for each in found.images[0].classes
    ]
