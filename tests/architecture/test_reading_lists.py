"""CONTRIBUTING's lists of the files to read: each file runs, in a build, a predict and an infer."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.serving import start_server
from tritonclient import grpc
from tritonclient.http import InferenceServerClient, InferInput

ROOT = Path(__file__).resolve().parents[2]
MOST = {"build": 25, "predict": 22, "infer": 25}
# Files whose functions run in each request, and a few for what threads do beside.
MOST_RUN = {"build": 80, "predict": 67, "infer": 57, "grpc": 46}


def reading_list(title: str) -> list[str]:
    """The files of one list, as paths from the root."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = re.search(rf"\n\*\*{title}[^*]*\*\*(.*?)\n\n(?=\*\*|#)", text, re.DOTALL)
    assert section, title
    return re.findall(r"`([a-z_/0-9]+\.py)`", section[1])


@pytest.fixture(scope="module")
def followed(shared, tmp_path_factory) -> dict[str, list[set[str]]]:
    """Return the files that ran in a build, and in each of three requests of each kind."""
    folder = tmp_path_factory.mktemp("followed")
    repository, out = folder / "models", folder / "files.jsonl"
    program = ("-m", "tests.architecture.followed", str(out))
    model = shared / "models" / "yolov8n.onnx"
    build = ("build", str(model), "--precision", "fp32", "--repository", str(repository))
    backend = ("--backend", "onnxruntime")
    subprocess.run([sys.executable, *program, *build, *backend], cwd=ROOT, check=True, timeout=300)
    server = start_server(repository, folder, program=program)

    def since() -> set[str]:
        lines = len(out.read_text().splitlines())
        server.process.send_signal(signal.SIGUSR1)
        while len(written := out.read_text().splitlines()) == lines:
            time.sleep(0.05)
        return set(json.loads(written[-1]))

    def walked(ask: Callable[[], object]) -> list[set[str]]:
        walks = []
        for _ in range(3):
            since()
            ask()
            walks.append(since())
        return walks

    try:
        built = set(json.loads(out.read_text()))
        image = next((shared / "data" / "coco64" / "val").glob("*.jpg")).read_bytes()

        def predict() -> None:
            assert httpx.post(server.predict_url("yolov8n"), content=image).status_code == 200

        predicted = walked(predict)
        tensor = InferInput("images", (1, 3, 640, 640), "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 3, 640, 640), np.float32))
        client = InferenceServerClient(f"127.0.0.1:{server.port}")
        inferred = walked(lambda: client.infer("yolov8n", [tensor]))
        tensor = grpc.InferInput("images", (1, 3, 640, 640), "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 3, 640, 640), np.float32))
        with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as caller:
            called = walked(lambda: caller.infer("yolov8n", [tensor]))
        # What the server does from time to time, as to follow histories.
        idle = walked(lambda: time.sleep(1.5))
    finally:
        server.stop()
    walks = {"predict": predicted, "infer": inferred, "grpc": called}
    return {"build": [built], "idle": idle, **walks}


@pytest.mark.parametrize("title", MOST)
def test_each_file_of_a_list_runs(followed, title):
    files = reading_list(title)
    ran = {path.split("/fovea_", 1)[1] for path in set.union(*followed[title])}
    assert 0 < len(files) <= MOST[title]
    assert [file for file in files if file not in ran] == []


@pytest.mark.parametrize("walk", MOST_RUN)
def test_a_walk_goes_through_few_files(followed, walk):
    # What the server does from time to time runs beside one request or another, or beside each
    # where they take long.
    # Nor does the number of families, each of which is asked, make a walk longer to read.
    ran = set.intersection(*followed[walk]) - set.union(*followed["idle"])
    ran = {path for path in ran if "/fovea_heads/" not in path}
    assert 0 < len(ran) <= MOST_RUN[walk], sorted(ran)
