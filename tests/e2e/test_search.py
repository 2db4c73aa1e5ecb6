"""Searches over HTTP, by the client and as they are typed, against plain NumPy."""

import json
import subprocess
import time

import cv2
import httpx
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.built import build
from tests.e2e.results import AS_IT_IS, COLOUR, averaged, embedder
from tests.engines.tiny import tiny_detector
from tests.forked import forked_fovea

from fovea_client import Client, ServerError
from fovea_engines.build.plan import BuildPlan
from fovea_preprocess.image import decode_image
from fovea_server.search.feature import SearchAnswer

pytestmark = pytest.mark.slow

NUMBER = 40


def picture(colour):
    return cv2.imencode(".png", np.full((8, 8, 3), colour[::-1], np.uint8))[1].tobytes()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    source = embedder(folder / "embedding.onnx")
    build(BuildPlan(source, "embedding", folder / "r", "onnxruntime", preprocess=AS_IT_IS))
    build(BuildPlan(tiny_detector(folder / "d.onnx"), "detector", folder / "r", "onnxruntime"))
    _build_versions(source, folder)
    return folder / "r"


def _build_versions(source, folder):
    """Build a model of five versions, of which three have the same network."""
    other = onnx.load(source)
    [weights] = [each for each in other.graph.initializer if each.name == "matrix"]
    weights.CopyFrom(numpy_helper.from_array(-averaged(16, 0)[2], "matrix"))
    onnx.save(other, folder / "other.onnx")
    for file, backend, precision, preprocess in (
        (source, "onnxruntime", "fp32", AS_IT_IS),
        (source, "onnxruntime", "fp16", AS_IT_IS),
        (source, "openvino", "fp32", AS_IT_IS),
        (folder / "other.onnx", "onnxruntime", "fp32", AS_IT_IS),
        (source, "onnxruntime", "fp32", {**AS_IT_IS, "channels": "BGR"}),
    ):
        plan = BuildPlan(
            file, "rebuilt", folder / "r", backend, precision=precision, preprocess=preprocess
        )
        build(plan)
    (folder / "r" / "rebuilt" / "config.pbtxt").write_text("version_policy { all {} }")


@pytest.fixture(scope="module")
def colours():
    return np.random.default_rng(0).integers(1, 255, (NUMBER, 3))


def index(*words):
    command = [*forked_fovea(), "index", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def indexed(repository, colours, tmp_path_factory):
    """The folder of images of an index."""
    folder = tmp_path_factory.mktemp("images")
    for at, colour in enumerate(colours):
        (folder / f"{at}.png").write_bytes(picture(colour))
    (folder / "broken.png").write_bytes(b"no image")
    done = index("embedding", folder, "--repository", repository, "--thumbnails")
    assert (done.returncode, f"{NUMBER} images, vectors of 16" in done.stdout) == (1, True)
    assert "broken.png" in done.stderr
    assert "1 of 41" in done.stderr
    return folder


@pytest.fixture(scope="module")
def indexed_version(repository, tmp_path_factory):
    file = tmp_path_factory.mktemp("image") / "one.png"
    file.write_bytes(picture(COLOUR))
    words = (file, "--repository", repository, "--version", 1, "--name", "first")
    assert index("rebuilt", *words).returncode == 0


@pytest.mark.usefixtures("indexed")
def test_the_matches_are_those_of_numpy(server, colours):
    with Client(server.url) as client:
        answers = client.predict("embedding", [picture(each) for each in colours])
        vectors = np.stack([each.embedding.vector for each in answers.images])
        wanted = client.predict("embedding", picture(COLOUR)).image.embedding.vector
        found = client.search("embedding", picture(COLOUR), k=NUMBER)
        few = client.search("embedding", picture(COLOUR), k=3, version=1)
        seen = client.search("embedding", picture(COLOUR), k=3, thumbnails=True)
    cosines = vectors @ wanted
    np.testing.assert_allclose([each.score for each in found], np.sort(cosines)[::-1], atol=2e-6)
    by_name = {f"{at}.png": cosine for at, cosine in enumerate(cosines)}
    assert all(abs(each.score - by_name[each.name]) < 2e-6 for each in found)
    assert few == found[:3]
    assert [each.name for each in seen] == [each.name for each in few]
    for each in seen:
        shown = decode_image(each.thumbnail).pixels
        colour = colours[int(each.name.removesuffix(".png"))]
        assert np.abs(shown.astype(int) - colour).max() < 8
    assert len({each.name for each in found}) == NUMBER


def test_an_index_is_kept_where_a_file_is_missing(indexed, repository, fovea):
    kept = repository / "embedding" / "index.npz"
    before = kept.read_bytes()
    words = ("embedding", indexed / "1.png", "absent.png", "--repository", repository)
    code, _, err = fovea("index", *words)
    assert (code, "absent.png" in err) == (2, True), err
    assert kept.read_bytes() == before


@pytest.mark.usefixtures("indexed")
def test_several_images_have_an_answer_each(server, colours):
    files = [("file", picture(colours[7])), ("file", b"no image")]
    answer = httpx.post(f"{server.url}/v1/models/embedding/search?k=1", files=files).json()
    SearchAnswer.model_validate(answer, strict=True)
    assert (answer["size"], answer["index"]) == (NUMBER, "index")
    first, broken = answer["images"]
    assert first["matches"][0] == {"name": "7.png", "score": pytest.approx(1, abs=1e-5)}
    assert broken["error"]["code"] == "invalid_image"


@pytest.mark.usefixtures("indexed")
@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("embedding/search?k=0", 422, "1 to 1000"),
        ("embedding/search?k=00001" + "0" * 5000, 422, "1 to 1000"),
        ("embedding/search?k=two", 422, "1 to 1000"),
        ("embedding/search?k=1&k=2", 422, "k is given 2 times"),
        ("embedding/search?conf=0.5", 422, "options are index, k and thumbnails"),
        ("embedding/search?thumbnails=big", 422, "must be true or false"),
        ("embedding/search?index=other", 404, "fovea index embedding IMAGES --name other"),
        *(
            (f"embedding/search?index={name}", 422, "only letters, digits, - and _")
            for name in ("../embedding/index", "/etc/passwd", "%2e%2e", "", "a%00b")
        ),
        ("embedding/search?index=linked", 404, "no index 'linked'"),
        ("embedding/search?index=wrong", 500, "fovea index"),
        ("embedding/search?index=pickled", 500, "cannot be read"),
        ("embedding/search?index=short", 422, "vectors have 3"),
        ("embedding/search?index=nan", 500, "NaN, infinite"),
        ("detector/search", 422, "needs a model with the task embed"),
        ("nobody/search", 404, "nobody"),
        ("embedding/versions/7/search", 404, "version"),
    ],
)
def test_what_is_wrong_is_refused(server, repository, tmp_path, path, status, says):
    folder = repository / "embedding"
    np.save(tmp_path / "outside.npy", np.ones((2, 16), np.float32))
    if not (folder / "linked.npy").exists():
        (folder / "linked.npy").symlink_to(tmp_path / "outside.npy")
    (folder / "wrong.npz").write_bytes(b"PK no zip")
    np.save(folder / "pickled.npy", np.array([{"a": 1}]), allow_pickle=True)
    np.save(folder / "short.npy", np.ones((2, 3), np.float32))
    np.save(folder / "nan.npy", np.full((2, 16), np.nan, np.float32))
    answer = httpx.post(f"{server.url}/v1/models/{path}", content=picture(COLOUR))
    assert (answer.status_code, says in answer.text) == (status, True), answer.text


@pytest.mark.usefixtures("indexed")
def test_an_index_that_changes_is_read_again(server, repository):
    file = repository / "embedding" / "numbers.npy"
    with Client(server.url) as client:
        wanted = client.predict("embedding", picture(COLOUR)).image.embedding.vector
        for rows in ([wanted], [-wanted, wanted], [wanted, wanted, -wanted]):
            np.save(file, np.stack(rows))
            found = client.search("embedding", picture(COLOUR), index="numbers")
            # Of equal ones the earlier is first.
            assert [each.name for each in found] == {
                1: ["0"],
                2: ["1", "0"],
                3: ["0", "1", "2"],
            }[len(rows)]
            time.sleep(0.02)  # the clock of files may tick as seldom
        with pytest.raises(ServerError, match="no image") as error:
            client.search("embedding", b"no image", index="numbers")
    assert error.value.status == 400


def test_the_command_says_what_is_wrong(repository, tmp_path, fovea):
    (tmp_path / "a.png").write_bytes(picture(COLOUR))
    words = ("a.png", "--repository", repository)
    code, _, err = fovea("index", "detector", *words)
    assert (code, "needs a model with the task embed" in err) == (2, True)
    code, _, err = fovea("index", "embedding", *words, "--name", "../up")
    assert (code, "only letters, digits, - and _" in err) == (2, True)


@pytest.mark.usefixtures("indexed_version")
@pytest.mark.parametrize(
    ("version", "how"),
    [
        (1, None),
        (2, None),
        (3, None),
        (4, "another source model"),
        (5, "different preprocessing"),
    ],
)
def test_an_index_is_of_one_model_at_any_precision(server, version, how):
    path = f"/v1/models/rebuilt/versions/{version}/search?index=first"
    answer = httpx.post(server.url + path, content=picture(COLOUR))
    if how is None:
        [match] = answer.json()["images"][0]["matches"]
        assert match == {"name": "one.png", "score": pytest.approx(1, abs=1e-3)}
    else:
        assert answer.status_code == 422
        assert how in answer.text
        mended = f"`fovea index rebuilt IMAGES --name first --version {version}`"
        assert mended in answer.text


@pytest.mark.usefixtures("indexed_version")
def test_the_command_that_mends_an_index_is_without_a_version_where_none_was_named(server):
    answer = httpx.post(f"{server.url}/v1/models/rebuilt/search?index=first", content=b"")
    assert "`fovea index rebuilt IMAGES --name first`" in answer.text


def test_how_often_the_best_match_is_of_the_same_person(server, repository, tmp_path, fovea):
    # The last is like nobody of its folder.
    people = {
        "anna": [(200, 100, 50), (202, 98, 52), (198, 103, 49)],
        "ben": [(20, 30, 210), (22, 28, 205), (201, 101, 50)],
        "alone": [(90, 200, 90)],
    }
    vectors, names = [], []
    with Client(server.url) as client:
        for name, images in people.items():
            (tmp_path / "people" / name).mkdir(parents=True)
            for at, colour in enumerate(images):
                (tmp_path / "people" / name / f"{at}.png").write_bytes(picture(colour))
                found = client.predict("embedding", picture(colour)).image.embedding
                vectors.append(found.vector)
                names.append(name)
    cosines = np.stack(vectors) @ np.stack(vectors).T - 2 * np.eye(len(names))
    best = [names[at] for at in cosines.argmax(axis=1)]
    hits = [a == b for a, b in zip(names, best, strict=True) if a != "alone"]
    assert 0 < sum(hits) < len(hits)
    words = ("eval", "embedding", "--data", tmp_path / "people", "--json")
    reports = []
    for where in (("--repository", repository), ("--url", server.url)):
        code, out, err = fovea(*words, *where)
        assert code == 0, err
        reports.append(json.loads(out))
    here, there = reports
    assert here == there
    assert (here["images"], here["recall1"]) == (6, pytest.approx(sum(hits) / 6))
    assert here["recall5"] >= here["recall1"]
    assert here["confusion"]["ben"]["anna"] == 1
    for name in ("anna", "ben"):
        for file in [*(tmp_path / "people" / name).iterdir()][1:]:
            file.unlink()
    code, _, err = fovea(*words, "--repository", repository)
    assert (code, "no folder with two images" in err) == (2, True)
