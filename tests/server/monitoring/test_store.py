"""The folder of captures: bounds, several servers, and servers that are killed."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from fovea_preprocess.errors import NotFound
from fovea_server.monitoring.captures import CaptureStore, captures

pytestmark = pytest.mark.slow


def writer(size, content=b"x"):
    def write(folder):
        (folder / "image.jpg").write_bytes(content * (size - 2))
        (folder / "predictions.json").write_bytes(b"{}")

    return write


def kept(folder):
    return sorted(captures(folder), key=lambda each: each.folder.name)


def test_the_oldest_make_room_in_the_folder_of_two_servers(tmp_path):
    bound = 1_000_000
    stores = [CaptureStore(tmp_path, bound, 30) for _ in range(2)]
    for number in range(600):
        stores[number % 2].add(f"model-{number % 3}", writer(5_000))
        if number % 50 == 49:
            assert sum(each.size for each in captures(tmp_path)) <= 1.01 * bound
    found = kept(tmp_path)
    assert 0.97 * bound <= sum(each.size for each in found) <= 1.01 * bound
    assert all(
        sum(file.stat().st_size for file in each.folder.iterdir()) == each.size for each in found
    )
    assert {each.model for each in found} == {"model-0", "model-1", "model-2"}
    newest = max(each.taken for each in found)
    assert datetime.now(UTC) - newest < timedelta(minutes=5)


def test_a_new_server_sees_what_is_there(tmp_path):
    CaptureStore(tmp_path, 1_000_000, 30).add("m", writer(100))
    store = CaptureStore(tmp_path, 1_000_000, 30)
    store.look()
    assert store.bytes == 100


def test_what_is_damaged_or_no_capture_stops_nothing(tmp_path, fovea):
    store = CaptureStore(tmp_path, 1_000_000, 30)
    store.add("m", writer(100))
    [first] = kept(tmp_path)
    (first.folder / "predictions.json").write_text("{")
    (first.folder.parent / "20201301T000000.000000Z-00000000-1-5").mkdir()
    (tmp_path / "stray").write_text("")
    store.look()
    assert store.bytes == 100
    code, out, err = fovea("capture", "ls", tmp_path, "--json")
    assert code == 0, err
    assert [each["rule"] for each in json.loads(out)["captures"]] == ["damaged"]
    code, _, err = fovea("capture", "export", tmp_path, "--out", tmp_path / "out")
    assert (code, "skipped 1 image with damaged files" in err) == (2, True), err
    code, _, err = fovea("capture", "purge", tmp_path / "m", "--model", "..", "--yes")
    assert (code, "no captured images of model '..'" in err) == (2, True), err
    code, out, err = fovea("capture", "purge", tmp_path, "--yes", "--json")
    assert (code, json.loads(out)["deleted"]) == (0, 1), err
    with pytest.raises(OSError, match="not a folder that this user can write to"):
        CaptureStore(tmp_path / "stray" / "below", 1_000_000, 30).look()


def test_what_is_too_old_goes(tmp_path):
    CaptureStore(tmp_path, 1_000_000, 30).add("m", writer(100))
    [first] = kept(tmp_path)
    aged = first.taken - timedelta(days=31)
    name = first.folder.name.replace(f"{first.taken:%Y%m%dT%H%M%S}", f"{aged:%Y%m%dT%H%M%S}")
    day = first.folder.parent.with_name(f"{aged:%Y-%m-%d}")
    day.mkdir()
    first.folder.rename(day / name)
    store = CaptureStore(tmp_path, 1_000_000, 30)
    store.add("m", writer(100))
    assert [each.folder == day / name for each in kept(tmp_path)] == [False]
    assert store.bytes == 100
    CaptureStore(tmp_path, 1_000_000, 30).add("m", writer(100))
    assert not day.exists()


def test_a_capture_that_is_too_large_or_fails_leaves_nothing(tmp_path):
    store = CaptureStore(tmp_path, 10_000, 30)
    with pytest.raises(OSError, match="exceeds the limit for all captures"):
        store.add("m", writer(20_000))

    def fails(folder):
        writer(100)(folder)
        raise ValueError("no image")

    with pytest.raises(ValueError, match="no image"):
        store.add("m", fails)
    assert [path.name for path in tmp_path.iterdir()] == []


WRITES = """
import sys
from pathlib import Path
from fovea_server.monitoring.captures import CaptureStore
store = CaptureStore(Path(sys.argv[1]), 1_000_000, 30)
def write(folder):
    (folder / "image.jpg").write_bytes(b"x" * 9_000)
    (folder / "predictions.json").write_bytes(b"y" * 1_000)
print("begins", flush=True)
while True:
    store.add("m", write)
"""


def test_a_killed_server_leaves_whole_captures(tmp_path):
    for _ in range(3):
        program = [sys.executable, "-c", WRITES, str(tmp_path)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "begins\n"
            while not any(captures(tmp_path, None)):
                pass
            process.kill()
        found = kept(tmp_path)
        assert found
        for each in found:
            assert [len(file.read_bytes()) for file in sorted(each.folder.iterdir())] == [
                9_000,
                1_000,
            ]
    assert process.returncode == -signal.SIGKILL
    # The next look clears what it had begun, once that is old.
    for beside in tmp_path.glob(".writing-*"):
        os.utime(beside, (0, 0))
    CaptureStore(tmp_path, 1_000_000, 30).add("m", writer(100))
    assert list(tmp_path.glob(".writing-*")) == []


def test_models_are_named_where_one_is_missing(tmp_path):
    assert list(captures(tmp_path / "not-there")) == []
    CaptureStore(tmp_path, 10_000, 30).add("cars", writer(100))
    with pytest.raises(NotFound, match="cars"):
        list(captures(tmp_path, "cats"))
