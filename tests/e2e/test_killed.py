"""Processes that are killed, and what they may not leave behind: servers and folders."""

import base64
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from tests.server.registries import adder, wait_until
from tests.serving import free_ports

from fovea_engines.repository.locking import remove_abandoned, temporary_folder

pytestmark = pytest.mark.slow

DEMO = Path(__file__).resolve().parents[2] / "server" / "fovea_server" / "demo"
FOVEA = (sys.executable, "-m", "fovea_server.cli.main")


@pytest.fixture
def temporary(tmp_path) -> Path:
    """The folder of temporary files, for the processes of one test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def server_below(process: psutil.Process) -> psutil.Process | None:
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "serve" in child.cmdline():
                return child
    return None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("command", ["tune", "bench"])
def test_no_server_outlives_its_command(demo_repository, temporary, command, number):
    typed = [command, "digits", "--repository", demo_repository, "--images", DEMO]
    typed += ["--seconds", "60", "--clients", "1"]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        [*FOVEA, *map(str, typed)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        here = psutil.Process(process.pid)
        wait_until(lambda: server_below(here))
        server = server_below(here)
        wait_until(lambda: server.net_connections("tcp"))
        others = here.children(recursive=True)
        process.send_signal(number)
        process.wait(60)
    gone, alive = psutil.wait_procs(others, timeout=60)
    assert not alive
    assert server in gone
    if number == signal.SIGKILL and command == "tune":
        assert list(temporary.glob("fovea-tmp-copy-*"))
        started = subprocess.run(
            [*FOVEA, "serve", temporary / "nowhere"],
            env=environment,
            capture_output=True,
            check=False,
        )
        assert started.returncode == 2, "whatever it does then"
    assert not list(temporary.glob("fovea*"))


def test_an_upload_that_is_killed_leaves_nothing_to_the_next_server(tmp_path, temporary):
    (tmp_path / "repository").mkdir()
    model = adder(tmp_path, "adder") / "1" / "model.onnx"
    zeros = {"data_type": "TYPE_INT32", "dims": [4], "zero_data": True}
    warmup = {"name": "s", "inputs": {"X": zeros}, "batch_size": 1, "count": 10_000}
    parameters = {
        "config": json.dumps({"model_warmup": [warmup]}),
        "file:1/model.onnx": base64.b64encode(model.read_bytes()).decode(),
        "file:1/large": base64.b64encode(bytes(20 << 20)).decode(),
    }

    def serve() -> tuple[subprocess.Popen[bytes], str]:
        (port,) = free_ports(1)
        flags = [f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false"]
        process = subprocess.Popen(
            [*FOVEA, "serve", tmp_path / "repository", "--model-control-mode=explicit", *flags],
            env=os.environ | {"TMPDIR": str(temporary)},
            stderr=subprocess.DEVNULL,
        )
        url = f"http://127.0.0.1:{port}"

        def live() -> bool:
            with suppress(httpx.TransportError):
                return httpx.get(f"{url}/v2/health/live").is_success
            return False

        wait_until(live)
        return process, url

    def upload(url: str) -> None:
        with suppress(httpx.TransportError):
            httpx.post(
                f"{url}/v2/repository/models/adder/load",
                json={"parameters": parameters},
                timeout=60,
            )

    first, url = serve()
    others = temporary / "fovea-tmp-model-of-a-live-server"
    others.mkdir()
    held = os.open(others, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "kept").mkdir(parents=True)
    (temporary / "fovea-tmp-link").symlink_to(elsewhere)
    asking = threading.Thread(target=upload, args=(url,))
    asking.start()
    wait_until(lambda: list(temporary.glob("fovea-tmp-model-*/adder/1/large")))
    first.kill()
    first.wait()
    asking.join()
    assert list(temporary.glob("fovea-tmp-model-*/adder"))

    second, url = serve()
    assert {path.name for path in temporary.glob("fovea*")} == {others.name, "fovea-tmp-link"}
    assert (elsewhere / "kept").is_dir()
    os.close(held)
    second.terminate()
    assert second.wait(60) == 0


def test_a_temporary_folder_in_use_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_folder("one") as one:
        with temporary_folder("other") as other:
            remove_abandoned()
            assert one.is_dir()
            assert other.is_dir()
        assert not other.exists()
    assert not list(tmp_path.iterdir())
