"""The client of the older version against HEAD's server, and HEAD's client against old answers."""

import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.serving import RunningServer
from tests.upgrade import client_calls
from tests.upgrade.asked import requests
from tests.upgrade.conftest import Answers
from tests.upgrade.recorded import DATA, load
from tests.upgrade.same import differences

from fovea_client import Client, ServerError

pytestmark = pytest.mark.slow

OLD = load("client.json")
ANSWERS = load("answers.json")
IMAGES = DATA / "images"


@pytest.fixture(scope="module")
def old_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the older client, from its wheel."""
    folder = tmp_path_factory.mktemp("client")
    [wheel] = DATA.glob("fovea_client-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def told_by(place: Path | None, url: str) -> Answers:
    """Run the calls in a process whose client comes from a folder, by default HEAD's."""
    environment = {**os.environ}
    if place is not None:
        environment["PYTHONPATH"] = str(place)
    program = Path(client_calls.__file__)
    command = [sys.executable, str(program), url, str(IMAGES)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    if place is not None:
        assert Path(told["file"]).is_relative_to(place)
    answers: Answers = told["answers"]
    return answers


@pytest.fixture(scope="module")
def by_old_client(old_client: Path, server: RunningServer, answers: Answers) -> Answers:
    return told_by(old_client, server.url)


@pytest.fixture(scope="module")
def by_new_client(server: RunningServer, answers: Answers) -> Answers:
    return told_by(None, server.url)


@pytest.mark.parametrize("name", OLD)
def test_the_old_client_asks_heads_server(name: str, by_old_client: Answers) -> None:
    found = differences(OLD[name], by_old_client[name], f"old client, {name}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", OLD)
def test_heads_client_has_the_same_names(name: str, by_new_client: Answers) -> None:
    found = differences(OLD[name], by_new_client[name], f"new client, {name}")
    assert not found, "\n".join(found)


class _Replay(BaseHTTPRequestHandler):
    """Gives the recorded answer to a request, by its method and address."""

    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        answer = self.server.answers[self.command, self.path]  # type: ignore[attr-defined]
        body = json.dumps(answer["body"]).encode()
        self.send_response(answer["status"])
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def replay() -> Iterator[Client]:
    """HEAD's client of a server that gives the recorded answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Replay) as server:
        server.answers = {  # type: ignore[attr-defined]
            (each.method, each.path): ANSWERS[each.name] for each in reversed(requests(IMAGES))
        }
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with Client(f"http://127.0.0.1:{server.server_port}") as client:
            yield client
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("model", client_calls.MODELS)
def test_heads_client_reads_old_results(model: str, replay: Client) -> None:
    """All that the old client read, the new one reads of the same bytes."""
    image = IMAGES / client_calls.MODELS[model]
    found = client_calls.told(lambda: replay.predict(model, image))
    assert not (told := differences(OLD[f"predict {model}"], found)), "\n".join(told)


def test_heads_client_reads_old_documents(replay: Client) -> None:
    for name, ask in {
        "models": replay.models,
        "model": lambda: replay.model("digits"),
        "card": lambda: replay.card("digits"),
        "ready": replay.ready,
        "ready digits": lambda: replay.ready("digits"),
    }.items():
        found = differences(OLD[name], client_calls.told(ask), name)
        assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("model", "status", "code"), [("nothing", 404, "not_found"), ("broken", 503, "model_not_ready")]
)
def test_heads_client_reads_old_errors(model: str, status: int, code: str, replay: Client) -> None:
    with pytest.raises(ServerError) as refused:
        replay.predict(model, IMAGES / "scene.jpg")
    assert (refused.value.status, refused.value.code) == (status, code)
    assert str(refused.value)
