"""A node of Ray, as `ray start` makes it: `fovea ray deploy` serves a repository there."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from tests.conftest import DEMO
from tests.forked import forked_fovea
from tests.serving import free_ports, start_server

pytestmark = [pytest.mark.smoke, pytest.mark.real]

RAY = Path(sys.executable).with_name("ray")


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a node; its processes end with the test."""
    if not RAY.exists():
        pytest.skip(f"{RAY} is not there: `make .venv/dev` installs it")
    [port] = free_ports(1)
    options = ["--head", f"--port={port}", "--num-cpus=2", "--include-dashboard=false", "--block"]
    options += ["--disable-usage-stats", "--object-store-memory=100000000"]
    node = subprocess.Popen([RAY, "start", *options], stdout=subprocess.PIPE, text=True)
    try:
        assert any("Ray runtime started" in line for line in node.stdout)
        yield f"127.0.0.1:{port}"
    finally:
        for process in [*psutil.Process(node.pid).children(recursive=True), node]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait()
        node.stdout.close()


def test_a_deployed_model_answers_as_a_served_one(address, demo_repository, tmp_path):
    port, grpc_port = free_ports(2)
    config = tmp_path / "fovea-ray.yaml"
    config.write_text(
        f"repository: {demo_repository}\nsettings: {{http_port: {port}, grpc_port: {grpc_port}}}\n"
    )
    command = [*forked_fovea(), "ray", "deploy", "--config", str(config), "--address", address]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    served = start_server(demo_repository, tmp_path)
    image = (DEMO / "scene-1.jpg").read_bytes()
    urls = (f"http://127.0.0.1:{port}/v1/models/digits/predict", served.predict_url("digits"))
    deployed, wanted = (httpx.post(url, content=image).json()["images"] for url in urls)
    assert deployed == wanted
    assert len(deployed[0]["detections"]) > 5
    assert served.stop() == 0
