"""`fovea predict` on real images, with a real server and without one."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fovea_client import Client, ConnectionFailed
from fovea_preprocess.image import decode_image
from fovea_server.app import build_app
from fovea_server.cli.main import app
from fovea_server.serve import make_server
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow

MODEL = "yolov5n"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


@pytest.fixture(scope="module")
def repository(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain Triton repository: a model that is served as it is, without a build."""
    root = tmp_path_factory.mktemp("repository")
    (root / MODEL / "1").mkdir(parents=True)
    (root / MODEL / "1/model.onnx").symlink_to(shared / "models" / f"{MODEL}.onnx")
    return root


@pytest.fixture(scope="module")
def url(repository: Path) -> Iterator[str]:
    """Address of a real server in a thread."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = Settings(
        model_repository=repository, http_port=port, allow_grpc=False, allow_metrics=False
    )
    app = build_app(settings)
    app.registry.start()
    server = make_server(app)
    thread = threading.Thread(target=server.run)
    thread.start()
    with Client(f"http://127.0.0.1:{port}") as client:
        until = time.monotonic() + 60
        while time.monotonic() < until and not _ready(client):
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def _ready(client: Client) -> bool:
    try:
        return client.ready(MODEL)
    except ConnectionFailed:
        return False


@pytest.fixture(params=["--repository", "--url"])
def source(request: pytest.FixtureRequest) -> tuple[str, object]:
    """Both ways to an answer, which must not differ; an address needs no scheme."""
    value = str(request.getfixturevalue(request.param.removeprefix("--")))
    return request.param, value.removeprefix("http://")


@pytest.fixture
def bus(shared: Path) -> Path:
    return shared / "data/bus.jpg"


def test_a_table_an_image(source: tuple[str, object], bus: Path, tmp_path: Path) -> None:
    done = run(MODEL, bus, *source, "--conf", 0.4)
    assert done.exit_code == 0, done.output
    assert "810 x 1080" in done.output
    assert done.output.count("person") == 3
    assert done.output.count("bus ") == 1
    assert run(MODEL, bus, *source, "--conf", 0.4, "--out", tmp_path / "out").exit_code == 0
    annotated = decode_image((tmp_path / "out/annotated/bus.jpg").read_bytes())
    assert annotated.pixels.shape == (1080, 810, 3)


def test_one_document_for_all_images(source: tuple[str, object], bus: Path, tmp_path: Path) -> None:
    (tmp_path / "same.jpg").symlink_to(bus)
    done = run(
        MODEL, bus, tmp_path / "same.jpg", *source, "--classes", "5,0", "--max-det", 1, "--json"
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert list(document) == ["model", "version", "task", "images", "timing_ms"]
    assert (document["model"], document["version"], document["task"]) == (MODEL, "1", "detect")
    files = [image.pop("file") for image in document["images"]]
    assert files == [str(bus), str(tmp_path / "same.jpg")]
    assert document["images"][0] == document["images"][1]
    [found] = document["images"][0]["detections"]
    assert found["class_name"] == "person"
    assert found["score"] == pytest.approx(0.814, abs=0.02)
    assert found["box"]["y2"] == pytest.approx(898, abs=5)
    assert document["timing_ms"]["total"] > document["timing_ms"]["infer"] > 0


def test_a_bad_image_fails_only_itself(
    source: tuple[str, object], bus: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(bus.read_bytes()[:3000])
    files = (cut, tmp_path / "absent.jpg", bus)
    done = run(MODEL, *files, *source, "--json")
    assert done.exit_code == 1
    images = json.loads(done.stdout)["images"]
    codes = [image["error"]["code"] for image in images[:2]]
    assert codes == ["invalid_image", "not_found"]
    assert len(images[2]["detections"]) >= 4
    shown = run(MODEL, *files, *source)
    assert shown.exit_code == 1
    for one in (done, shown):
        assert one.stderr.endswith("\nerror: 2 of 3 images failed\n")
    assert str(cut) in shown.stderr
    assert f"{tmp_path / 'absent.jpg'}: there is no such file\n" in shown.stderr
    assert "person" in shown.stdout
    assert shown.stderr.endswith("\nerror: 2 of 3 images failed\n")


@pytest.mark.parametrize("classes", ["persn", "", "person,", "-1"])
def test_wrong_classes_exit_with_2(source: tuple[str, object], bus: Path, classes: str) -> None:
    done = run(MODEL, bus, *source, "--classes", classes)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("error: ")


def test_saved_images_overwrite_nothing(
    source: tuple[str, object], bus: Path, tmp_path: Path
) -> None:
    here, there = tmp_path / "bus.jpg", tmp_path / "other/bus.jpg"
    there.parent.mkdir()
    for copy in (here, there):
        copy.write_bytes(bus.read_bytes())
    assert run(MODEL, here, there, *source, "--out", tmp_path).exit_code == 0
    assert here.read_bytes() == bus.read_bytes()
    assert (tmp_path / "annotated/bus.jpg").exists()
    assert (tmp_path / "annotated/other/bus.jpg").exists()


def test_nothing_found_is_said(source: tuple[str, object], bus: Path) -> None:
    done = run(MODEL, bus, *source, "--classes", 79)
    assert done.exit_code == 0
    assert "nothing found" in done.stdout


def test_a_version_is_asked_for(source: tuple[str, object], bus: Path) -> None:
    newest, first = (run(MODEL, bus, *source, *words) for words in ((), ("--version", 1)))
    assert first.exit_code == 0, first.stderr
    assert first.stdout == newest.stdout
    absent = run(MODEL, bus, *source, "--version", 7)
    assert absent.exit_code != 0
    assert "version 7" in absent.stderr


def test_a_wrong_model_is_a_sentence(source: tuple[str, object], bus: Path) -> None:
    done = run("no-such-model", bus, *source)
    assert done.exit_code == 2
    assert isinstance(done.exception, SystemExit)
    assert "no-such-model" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--conf", "1.5"), "from 0 to 1"),
        (("--conf", "much"), "conf is 'much'"),
        (("--max-det", "0"), "1 to 3000"),
        (("--url", "ftp://127.0.0.1"), "http://127.0.0.1:8000"),
        (("--url", "http://127.0.0.1:9"), "no answer from"),
        (("--classes", "person,"), "class names or ids"),
        (("--url", "http://h", "--repository", "r"), "not both"),
    ],
)
def test_wrong_arguments_are_a_sentence(
    arguments: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    (tmp_path / "any.jpg").write_bytes(b"any")
    done = run(MODEL, tmp_path / "any.jpg", *arguments)
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert says in done.stderr
