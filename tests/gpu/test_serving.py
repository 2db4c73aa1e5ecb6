"""Versions are replaced under load: no request fails, and memory stays level."""

import shutil
import threading
from collections import Counter

import cv2
import httpx
import pytest
from tests.drawn import draw
from tests.forked import PROGRAM
from tests.gpu.subject import ROWS
from tests.serving import start_server

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

CLIENTS, VERSIONS = 16, 10
# Of the second version on: the first brings what stays with the process.
SLACK = 64 << 20
PATIENCE_S = 60


def test_versions_are_replaced_under_load(device, backend, tiny, tmp_path, record_property):
    repository = tmp_path / "r"
    for name in ("a", "b"):
        build(BuildPlan(tiny.model, name, repository, backend, max_batch=ROWS))
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    # Not as a fork: CUDA does not outlive one.
    server = start_server(repository, tmp_path, flags, program=PROGRAM)
    _, png = cv2.imencode(".png", draw(64, 80, 0))
    answers: Counter[int | str] = Counter()
    over = threading.Event()

    def ask(number: int) -> None:
        with httpx.Client(timeout=PATIENCE_S) as client:
            while not over.is_set():
                answer = client.post(
                    server.predict_url("ab"[number % 2]),
                    content=png.tobytes(),
                    headers={"Content-Type": "image/png"},
                )
                answers[answer.status_code] += 1

    def served() -> list[str]:
        return httpx.get(f"{server.url}/v2/models/a", timeout=PATIENCE_S).json()["versions"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    free = []
    try:
        for thread in threads:
            thread.start()
        for version in range(2, VERSIONS + 2):
            new = shutil.copytree(repository / "a" / "1", tmp_path / "new")
            new.rename(repository / "a" / str(version))
            for _ in range(PATIENCE_S * 4):
                if served() == [str(version)]:
                    break
                over.wait(0.25)
            assert served() == [str(version)], server.log.read_text()
            with device.current():
                free.append(device.memory()[0])
    finally:
        over.set()
        for thread in threads:
            thread.join()
        code = server.stop()
    record_property("answers", dict(answers))
    record_property("MB free", [each >> 20 for each in free])
    log = server.log.read_text()
    record_property("warnings", [line for line in log.splitlines() if "WARNING" in line][:20])
    assert answers.keys() == {200}
    assert code == 0, log
    assert min(free[1:]) >= free[1] - SLACK
    assert "without CUDA graphs" not in log
