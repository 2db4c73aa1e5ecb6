"""`fovea demo`, as `make run` runs it."""

import re
import signal
import subprocess
from pathlib import Path

import pytest
from tests.forked import forked_fovea
from tests.serving import free_ports

pytestmark = pytest.mark.slow

SERVING = "Serving; Ctrl-C stops it."


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    command = [*forked_fovea(), "demo", "--folder", str(folder)]
    port = f"--port={free_ports(1)[0]}"
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, port, *flags], stdout=pipe, stderr=pipe, text=True)


def test_once_does_not_say_that_it_serves(tmp_path):
    done = start(tmp_path, "--task", "segment", "--once", "--port=0", "--host=::1")
    shown = done.communicate(timeout=120)[0]
    assert done.returncode == 0
    assert re.search(r"through\s+http://\[::1\]:[1-9]", shown)
    assert "score" in shown
    assert "mask" in shown
    assert "annotated image" in shown
    assert "Serving" not in shown
    assert "curl" not in shown
    assert (tmp_path / "digits-segment-annotated.jpg").stat().st_size > 10_000


def test_the_reader_reads_a_plate(tmp_path):
    done = start(tmp_path, "--task", "text-recognition", "--once")
    shown = done.communicate(timeout=120)[0]
    assert done.returncode == 0
    assert "VL956VK" in shown
    assert (tmp_path / "plates-read-annotated.jpg").is_file()


def test_else_it_serves_until_it_is_stopped(tmp_path):
    demo = start(tmp_path)
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if SERVING in line:
            break
    assert any("curl --data-binary" in line and "/models/digits/" in line for line in lines)
    demo.send_signal(signal.SIGINT)
    assert demo.communicate(timeout=60)[0] == ""
    assert demo.returncode == 0


def test_an_answer_that_fails_ends_it_with_one_line(tmp_path):
    (tmp_path / "digits-classify-annotated.jpg").mkdir()
    demo = start(tmp_path, "--task", "classify", "--host=0.0.0.0")
    told = demo.communicate(timeout=60)[1]
    assert demo.returncode == 1
    assert "a request to its server failed: " in told
    assert "digits-classify-annotated.jpg" in told
    assert "Traceback" not in told


def test_the_words_of_an_image_that_was_not_trained_on_are_found(tmp_path):
    done = start(tmp_path, "--task", "embed", "--once", "--port=0")
    shown = done.communicate(timeout=120)[0]
    assert done.returncode == 0
    rows = re.findall(r"a (?:red|blue|green) \w+ +│ +(0\.\d+)", shown)
    assert len(rows) == 4
    assert shown.index("a red seven") < shown.index("a blue seven")
    assert float(rows[0]) > 0.9
