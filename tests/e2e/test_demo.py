"""`fovea demo`, as `make run` runs it."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.serving import free_ports

SERVING = "Serving; Ctrl-C stops it."


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fovea_server.commands.cli", "demo", "--folder", str(folder)]
    port = f"--port={free_ports(1)[0]}"
    return subprocess.Popen([*command, port, *flags], stdout=subprocess.PIPE, text=True)


def test_once_does_not_say_that_it_serves(tmp_path):
    done = start(tmp_path, "--once")
    shown = done.communicate(timeout=120)[0]
    assert done.returncode == 0
    assert "score" in shown
    assert "annotated image" in shown
    assert "Serving" not in shown
    assert "curl" not in shown
    assert (tmp_path / "scene-1-annotated.jpg").stat().st_size > 10_000


def test_else_it_serves_until_it_is_stopped(tmp_path):
    demo = start(tmp_path)
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if SERVING in line:
            break
    assert any("curl --data-binary" in line for line in lines)
    demo.send_signal(signal.SIGINT)
    assert demo.communicate(timeout=60)[0] == ""
    assert demo.returncode == 0
