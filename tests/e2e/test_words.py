"""Models of images and texts: built, and asked by words over every route."""

import asyncio
import csv
import json

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tests.built import build
from tests.e2e.conftest import images
from tests.e2e.two_towers import image_vectors, reader, text_vectors, two_towers

from fovea_client import AsyncClient, Client, ServerError
from fovea_engines.build.plan import BuildPlan
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = pytest.mark.slow

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
    reader(folder / "r" / "bert" / "1")
    bare = reader(folder / "r" / "plain" / "1")
    bare.with_name("tokenizer.json").unlink()
    return folder / "r"


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


def test_texts_have_vectors_beside_those_of_images(server):
    wanted = text_vectors(*LABELS)
    with Client(server.url) as client:
        read = client.embed("clip", LABELS)
        again = client.embed("clip", [*LABELS, "blue"], version=1)
        raw = client.embed("clip", ["red"], normalize=False)
        halves = client.embed("halves", LABELS)
    np.testing.assert_allclose([each.vector for each in read], wanted, atol=1e-5)
    assert [each.vector.tolist() for each in again[:3]] == [each.vector.tolist() for each in read]
    assert (raw[0].normalised, raw[0].norm) == (False, pytest.approx(1, abs=1e-5))
    np.testing.assert_allclose([each.vector for each in halves], wanted, atol=1e-5)
    metrics = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    counted = [
        line for line in metrics.splitlines() if line.startswith('fovea_texts_total{model="clip"')
    ]
    assert {line.partition('vector="')[2].partition('"')[0] for line in counted} == {
        "kept",
        "computed",
    }

    async def ask():
        async with AsyncClient(server.url) as client:
            return await client.embed("clip", LABELS)

    for one, other in zip(asyncio.run(ask()), read, strict=True):
        assert one.vector.tolist() == other.vector.tolist()


def test_a_network_of_texts_alone_has_vectors_too(server):
    with Client(server.url) as client:
        read = client.embed("bert", LABELS)
        with pytest.raises(ServerError, match="does not accept texts"):
            client.embed("plain", LABELS)
    np.testing.assert_allclose([each.vector for each in read], text_vectors(*LABELS), atol=1e-5)
    assert read[0].norm != pytest.approx(1, abs=1e-3)


def test_words_find_the_images_of_an_index(server, repository, tmp_path, fovea):
    (tmp_path / "images").mkdir()
    for at, colour in enumerate(COLOURS):
        (tmp_path / "images" / f"{at}.png").write_bytes(picture(colour))
    code, _, err = fovea("index", "clip", "images", "--repository", repository)
    assert code == 0, err
    cosines = (image_vectors(SHARES) @ text_vectors("a red dog").T)[:, 0]
    with Client(server.url) as client:
        found = client.search("clip", text="a red dog", k=2)
        with pytest.raises(ValueError, match="one of them"):
            client.search("clip")
        with pytest.raises(ServerError, match="not only blanks"):
            client.search("clip", text=" ")
    assert [each.name for each in found] == [f"{at}.png" for at in np.argsort(-cosines)]
    np.testing.assert_allclose([each.score for each in found], np.sort(cosines)[::-1], atol=1e-5)


def test_texts_and_labels_over_the_v2_protocol(server):
    texts = np.array([each.encode() for each in LABELS], object)
    image = np.array([picture(COLOURS[0])], object)
    with Client(server.url) as client:
        vectors = client.infer("clip", {"TEXT": texts})["embedding"]
        parameters = {"labels": ",".join(LABELS), "top_k": 2}
        found = client.infer("clip", {"pixel_values": image}, parameters=parameters)
        with pytest.raises(ServerError, match="not UTF-8"):
            client.infer("clip", {"TEXT": np.array([b"\xff"], object)})
    np.testing.assert_allclose(vectors, text_vectors(*LABELS), atol=1e-5)
    asked = grpc_client.InferInput("TEXT", list(texts.shape), "BYTES")
    asked.set_data_from_numpy(texts)
    with grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        told = client.infer("clip", [asked]).as_numpy("embedding")
        seen = images(grpc_client, picture(COLOURS[0]), name="pixel_values")
        named = client.infer("clip", seen, parameters=parameters).as_numpy("class_names")
    np.testing.assert_array_equal(told, vectors)
    assert named.tolist() == found["class_names"].tolist()
    scores = _softmax(image_vectors(SHARES[:1]) @ text_vectors(*LABELS).T)[0]
    best = np.argsort(-scores)[:2]
    assert found["class_names"].tolist() == [[LABELS[at].encode() for at in best]]
    np.testing.assert_allclose(found["scores"][0], scores[best], atol=1e-4)


def test_the_command_classifies_by_words(repository, server, tmp_path, fovea):
    (tmp_path / "one.png").write_bytes(picture(COLOURS[0]))
    words = ("predict", "clip", "one.png", "--texts", "a red cat,a green dog,7", "--json")
    scores = _softmax(image_vectors(SHARES[:1]) @ text_vectors(*LABELS).T)[0]
    for where in (("--repository", repository), ("--url", server.url)):
        code, out, err = fovea(*words, *where)
        assert code == 0, err
        [image] = json.loads(out)["images"]
        assert image["classes"][0]["class_name"] == LABELS[scores.argmax()]
        assert image["classes"][0]["score"] == pytest.approx(scores.max(), abs=1e-4)
        out = tmp_path / where[0].strip("-")
        code, _, err = fovea(*words[:-1], *where, "--out", out, "--format", "csv,annotated")
        assert code == 0, err
        with (out / "predictions.csv").open() as rows:
            assert next(csv.DictReader(rows))["class_name"] == LABELS[scores.argmax()]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("clip/predict?labels=", None, 422, "separated by commas"),
        ("clip/predict?labels=a&normalize=false", None, 422, "has no effect"),
        ("clip/predict?labels=a&classes=5", None, 422, "has no class 5"),
        ("clip/predict?top_k=2", None, 422, "has no effect"),
        ("clip/predict?labels=" + "a," * 1000 + "a", None, 422, "1 to 1000"),
        ("clip/embed", {"text": []}, 422, "1 to 1000"),
        ("clip/embed", {"text": ["a", 7]}, 400, "the body must be"),
        ("clip/embed", {"text": "a" * 2001}, 422, "2001 letters"),
        ("clip/embed", {"text": "a", "k": 1}, 422, "unknown option 'k'"),
        ("clip/embed", {}, 400, "the body must be"),
        ("clip/embed", {"text": "a", "top_k": 2}, 422, "unknown option 'top_k'"),
    ],
)
def test_what_is_wrong_is_refused(server, path, body, status, says):
    sent = {"content": picture(COLOURS[0])} if body is None else {"json": body}
    answer = httpx.post(f"{server.url}/v1/models/{path}", **sent)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text


def test_what_cannot_be_built_is_refused(tmp_path):
    source = two_towers(tmp_path, halves=True)
    images = {"preprocess": AS_IT_IS, "tokenizer": tmp_path / "tokenizer.json"}
    with pytest.raises(InvalidOption):
        build(BuildPlan(source, "m", tmp_path / "r", "onnxruntime", **images))
    found = BuildPlan(source, "m", tmp_path / "r", text=tmp_path / "text.onnx").tokenizer_file
    assert found == tmp_path / "tokenizer.json"
    found.unlink()
    with pytest.raises(InvalidOption, match="--tokenizer"):
        BuildPlan(source, "m", tmp_path / "r", text=tmp_path / "text.onnx")
    whole = two_towers(tmp_path / "whole")
    whole.with_name("tokenizer.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(UnsupportedModel, match="--tokenizer"):
        build(BuildPlan(whole, "m", tmp_path / "r", "onnxruntime"))
