"""`fovea predict` over videos, and runs that are interrupted, killed and resumed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from tests.conftest import DEMO
from tests.server.streams.conftest import write_moving_scene

from fovea_client import Client
from fovea_engines.evaluation.samples import read_image

pytestmark = pytest.mark.slow

MODEL = "digits"
SIZE = (640, 480)
RATE = 10
FORMATS = ("--format", "coco,yolo,csv,annotated")
# More than are in flight at once.
FRAMES = 24


def write_video(path: Path, frames: int = FRAMES) -> None:
    """A scene that moves to the right."""
    code = cv2.VideoWriter.fourcc(*("MJPG" if path.suffix == ".avi" else "mp4v"))
    video = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, code, RATE, SIZE)
    scene = cv2.imread(str(DEMO / "scene-1.jpg"))
    for number in range(frames):
        video.write(np.roll(scene, 4 * number, axis=1))
    video.release()


def frames_of(path: Path, rate: float | None = None) -> list[np.ndarray]:
    video, frames = cv2.VideoCapture(str(path)), []
    if rate is not None:
        assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(rate, rel=0.01)
    while (read := video.read())[0]:
        frames.append(read[1])
    return frames


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture(params=["here", "url"])
def source(request, demo_repository) -> tuple[str, object]:
    if request.param == "here":
        return "--repository", demo_repository
    return "--url", request.getfixturevalue("demo_server").url


@pytest.mark.parametrize(
    ("source", "suffix"),
    [("here", ".mp4"), ("url", ".avi"), ("here", ".mkv"), ("url", ".mov")],
    indirect=["source"],
)
def test_frames_are_found_and_drawn(fovea, source, demo_server, tmp_path, suffix):
    clip = tmp_path / f"clip{suffix}"
    write_video(clip)
    code, _, err = fovea("predict", MODEL, clip, *source, "--every", 3, "--out", "out", *FORMATS)
    assert code == 0, err
    found = lines(tmp_path / "out")
    assert [line["frame"] for line in found] == list(range(0, FRAMES, 3))
    frames = frames_of(clip, RATE)
    drawn = frames_of(tmp_path / "out" / "annotated" / "clip.mp4", RATE / 3)
    assert len(drawn) == len(found)
    with Client(demo_server.url) as client:
        for line, frame in zip(found, frames[::3], strict=True):
            [expected] = client.predict(MODEL, frame, channels="BGR").images
            assert [one["class_name"] for one in line["detections"]] == [
                one.class_name for one in expected.detections
            ]
    for frame, with_boxes in zip(frames[::3], drawn, strict=True):
        changed = np.abs(frame.astype(int) - with_boxes).max(axis=-1) > 80
        assert 0.005 < changed.mean() < 0.3
    document = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert [image["file_name"] for image in document["images"]] == [
        f"clip_{number:06}.jpg" for number in range(0, FRAMES, 3)
    ]
    assert (tmp_path / "out" / "labels" / "clip_000021.txt").read_text()
    assert "clip" + suffix in (tmp_path / "out" / "predictions.csv").read_text()


def test_a_video_that_breaks_off_fails_after_its_frames(fovea, demo_repository, tmp_path):
    write_video(tmp_path / "clip.avi", 60)
    whole = (tmp_path / "clip.avi").read_bytes()
    (tmp_path / "clip.avi").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "no.mp4").write_bytes(b"no video")
    code, out, err = fovea(
        "predict", MODEL, "clip.avi", "no.mp4", "absent.mov", "--repository", demo_repository
    )
    assert code == 1
    assert out.count("clip.avi frame ") > 20
    assert "of 6.0 s: it is truncated or damaged" in err
    assert "no.mp4: not a readable video" in err
    assert "absent.mov: the file does not exist" in err
    assert "error: 3 of " in err


def test_a_video_has_ids_trails_and_counts(fovea, demo_repository, tmp_path):
    write_moving_scene(tmp_path / "clip.avi", 60, 4)
    own = ("--repository", demo_repository, "--line", "middle=0.5,0,0.5,1")
    code, out, err = fovea(
        *("predict", MODEL, "clip.avi", *own, "--zone", "all=0,0,1,0,1,1,0,1"),
        *("--out", "out", "--format", "annotated,csv"),
    )
    assert code == 0, err
    lines = map(json.loads, (tmp_path / "out" / "predictions.jsonl").read_text().splitlines())
    ids = [{each["track_id"] for each in line["detections"]} for line in lines]
    assert ids[0] == {None}
    assert len(ids[2] - {None}) > 2
    code, events, err = fovea("watch", MODEL, "clip.avi", *own, "--event", "crossed", "--json")
    assert code == 0, err
    ways = [json.loads(each)["direction"] for each in events.splitlines()]
    assert ways
    assert f"clip.avi: middle: in {ways.count('in')}, out {ways.count('out')}" in out
    code, _, err = fovea("predict", MODEL, "clip.avi", *own[:2], "--out", "plain")
    assert code == 0, err
    tracked, plain = (
        frames_of(tmp_path / name / "annotated" / "clip.mp4") for name in ("out", "plain")
    )
    assert len(tracked) == len(plain) == 60
    # The line and its counts are there, in its colour.
    middle = (tracked[30][100:, 310:330].astype(int) - plain[30][100:, 310:330]).mean(axis=(0, 1))
    assert np.abs(middle).max() > 5


def test_a_video_is_not_followed_without_the_extra(fovea, demo_repository, tmp_path, monkeypatch):
    write_video(tmp_path / "clip.mp4", 2)
    monkeypatch.setitem(sys.modules, "trackers", None)
    flags = ("--repository", demo_repository, "--line", "a=0,0,1,1", "--out", "o")
    code, _, err = fovea("predict", MODEL, "clip.mp4", *flags)
    assert code == 2
    assert "--line" in err
    assert "pip install 'fovea-serve[streams]'" in " ".join(err.split())


def write_matroska(path: Path, times_ms: list[int]) -> None:
    """A video of a screen: its frames come when something changes."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, at in enumerate(times_ms):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), number, np.uint8))
            frame.pts, frame.time_base = at, Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def test_frames_of_uneven_times_are_a_whole_video(fovea, demo_repository, tmp_path):
    write_matroska(tmp_path / "screen.mkv", [0, 10, 20, 1000, 5000, 5001, 9000, 20000])
    args = ("predict", MODEL, "screen.mkv", "--repository", demo_repository)
    code, out, err = fovea(*args)
    assert code == 0, err
    assert out.count("screen.mkv frame ") == 8
    whole = (tmp_path / "screen.mkv").read_bytes()
    (tmp_path / "screen.mkv").write_bytes(whole[: len(whole) // 2])
    code, out, err = fovea(*args)
    assert code == 1
    assert "the video ends after" in err


def test_a_frame_that_cannot_be_decoded_fails_only_itself(fovea, demo_repository, tmp_path):
    write_video(tmp_path / "clip.avi", 12)
    data = bytearray((tmp_path / "clip.avi").read_bytes())
    starts = [found.start() for found in re.finditer(b"\xff\xd8\xff", data)]
    length = starts[4] - 16 - starts[3]
    data[starts[3] : starts[3] + length] = bytes(length)
    (tmp_path / "clip.avi").write_bytes(data)
    code, out, err = fovea("predict", MODEL, "clip.avi", "--repository", demo_repository)
    assert code == 1
    assert out.count("clip.avi frame ") == 11
    assert "clip.avi frame 3: this frame cannot be decoded" in err
    assert "clip.avi frame 11" in out


@pytest.fixture
def mixed(tmp_path) -> Path:
    """Images, a video, and a pipe, at which a run waits for ever."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    for number in range(20):
        shutil.copy(DEMO / f"scene-{number % 2 + 1}.jpg", folder / f"a{number}.jpg")
    (folder / "a20.jpg").write_bytes(b"no image")
    write_video(folder / "b.mp4")
    os.mkfifo(folder / "c.jpg")
    return folder


@contextmanager
def begun(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A run over the folder that has come to the pipe, and so has written all but the last 15."""
    sources = ("mixed/*", "mixed/c.jpg")  # no glob finds the pipe, so it is the last
    command = ("predict", MODEL, *sources, *arguments, "--out", "out", *FORMATS)
    with subprocess.Popen(
        [sys.executable, "-m", "fovea_server.cli.main", *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        try:
            journal, until = Path("out", "predictions.jsonl"), time.monotonic() + 60
            while not journal.exists() or journal.read_bytes().count(b"\n") < 21 + FRAMES - 15:
                assert time.monotonic() < until, "the run does not come to the pipe"
                time.sleep(0.02)
            yield run
        finally:
            run.kill()


def ended(run: subprocess.Popen[str], how: signal.Signals) -> tuple[str, str]:
    """End a run by a signal, and return its output.

    A signal that comes right before the pipe is opened is lost, so it is sent again.
    """
    while True:
        run.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            return run.communicate(timeout=20)


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_resumed_run_writes_what_an_uninterrupted_one_does(
    fovea, demo_repository, mixed, tmp_path, how, code
):
    with begun("--repository", demo_repository) as run:
        _, err = ended(run, how)
        assert run.returncode == code
    journal = tmp_path / "out" / "predictions.jsonl"
    if how == signal.SIGKILL:
        journal.write_bytes(journal.read_bytes()[:-100])
    else:
        assert "their results are in out" in err
        assert not list(tmp_path.glob("out/annotated/*.mp4"))
    (mixed / "c.jpg").unlink()
    shutil.copy(DEMO / "scene-2.jpg", mixed / "c.jpg")
    before = journal.read_bytes()
    given = ("predict", MODEL, "mixed/*", "--repository", demo_repository, *FORMATS)
    assert fovea(*given, "--out", "out")[0] == 2  # it would be lost
    code, out, err = fovea(*given, "--out", "out", "--resume")
    assert (code, err.splitlines()[-1]) == (1, "error: 1 of 46 images failed")
    assert "46 images" in out
    assert journal.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert fovea(*given, "--out", "whole")[0] == 1
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/annotated/*.jpg")}
    assert fovea(*given, "--out", "out", "--resume")[0] == 1  # there is nothing left to do
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_run_whose_server_has_gone_goes_on_here(fovea, serve, demo_repository, mixed, tmp_path):
    server = serve(demo_repository)
    with begun("--url", server.url) as run:
        server.stop()
        (mixed / "c.jpg").write_bytes((DEMO / "scene-2.jpg").read_bytes())
        _, err = run.communicate(timeout=60)
        assert run.returncode == 1
    # The last requests before the pipe may be under way when the server stops.
    assert re.search(r"stopped after \d\d images", err)
    assert err.splitlines()[-1].startswith("error: ")
    (mixed / "c.jpg").unlink()
    shutil.copy(DEMO / "scene-2.jpg", mixed / "c.jpg")
    given = ("predict", MODEL, "mixed/*", "--repository", demo_repository, *FORMATS)
    assert fovea(*given, "--out", "out", "--resume")[0] == 1
    assert fovea(*given, "--out", "whole")[0] == 1
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("--conf", "0.5"), 'options was {} and is now {"conf": 0.5}'),
        (("--format", "csv"), "formats was annotated and is now csv"),
        (("clip.avi", "--codec", "mpeg4"), "codec was null and is now mpeg4"),
    ],
)
def test_other_options_do_not_go_on(fovea, demo_repository, tmp_path, change, says):
    shutil.copy(DEMO / "scene-1.jpg", tmp_path)
    write_video(tmp_path / "clip.avi", 1)
    given = ("predict", MODEL, "scene-1.jpg", "--repository", demo_repository, "--out", "out")
    assert fovea(*given, "--resume")[0] == 0  # there was nothing to go on with
    code, _, err = fovea(*given)
    assert (code, "out has results: give another --out" in err) == (2, True), err
    code, _, err = fovea(*given, "--resume", *change)
    assert (code, says in err) == (2, True), err


def test_one_run_at_a_time_writes_into_a_folder(fovea, demo_repository, mixed, tmp_path):
    given = ("predict", MODEL, "mixed/*", "--repository", demo_repository, *FORMATS)
    with begun("--repository", demo_repository):
        code, _, err = fovea(*given, "--out", "out", "--resume")
    assert (code, "another run is writing to out" in err) == (2, True), err


def test_another_version_or_other_images_do_not_go_on(fovea, demo_versions, tmp_path):
    for name in ("1.jpg", "2.jpg"):
        shutil.copy(DEMO / "scene-1.jpg", tmp_path / name)
    first = ("--repository", demo_versions, "--out", "out", "--resume")
    assert fovea("predict", MODEL, "1.jpg", *first)[0] == 0
    code, _, err = fovea("predict", MODEL, "2.jpg", *first)
    assert code == 2
    assert "image 1 was 1.jpg, and now it is 2.jpg" in err
    code, _, err = fovea(
        "predict", demo_versions / MODEL / "1", "1.jpg", "--out", "out", "--resume"
    )
    assert code == 2
    assert "version was 2 and is now 1" in err
    assert fovea("predict", MODEL, "1.jpg", "2.jpg", *first)[0] == 0
    assert len(lines(tmp_path / "out")) == 2


def test_a_damaged_journal_is_a_sentence(fovea, demo_repository, tmp_path):
    shutil.copy(DEMO / "scene-1.jpg", tmp_path)
    given = ("predict", MODEL, "scene-1.jpg", "--repository", demo_repository, "--out", "out")
    assert fovea(*given)[0] == 0
    (tmp_path / "out" / "predictions.jsonl").write_text('{"file": "scene-1.jpg"}\n')
    code, _, err = fovea(*given, "--resume")
    assert (code, "line 1 of out/predictions.jsonl is damaged" in err) == (1, True)
    (tmp_path / "out" / "run.json").write_text("{")
    code, _, err = fovea(*given)
    assert (code, "run.json is damaged" in err) == (1, True)


def test_a_folder_is_a_line_an_image(fovea, source, mixed):
    (mixed / "c.jpg").unlink()
    code, out, err = fovea("predict", MODEL, mixed, *source)
    assert code == 1
    assert out.splitlines()[0].startswith(f"{mixed}/a0.jpg  640 x 480  ")
    assert len(out.splitlines()) == 20
    assert "skipped 1 file" in err
    assert f"{mixed}/a20.jpg: not an image" in err
    document = json.loads(fovea("predict", MODEL, mixed, *source, "--json")[1])
    assert [image["file"] for image in document["images"]] == [
        str(mixed / f"a{number}.jpg") for number in range(21)
    ]


@pytest.mark.parametrize(
    ("source", "arguments", "says"),
    [
        ("scene-1.jpg", ("--every", "2"), "--every"),
        ("scene-1.jpg", ("--format", "csv"), "without --out"),
        ("scene-1.jpg", ("--out", "out", "--codec", "vp9"), "--codec"),
        ("scene-1.jpg", ("--resume",), "without --out"),
        ("scene-1.jpg", ("--out", "out", "--json"), "give --json or --out, not both"),
        ("scene-1.jpg", ("--out", "out", "--format", "xml"), "annotated, coco, yolo, csv, jsonl"),
        ("clip.mp4", ("--track", "sort"), "without --out"),
        ("clip.mp4", ("--out", "out", "--line", "a=0,0,1,1", "--resume"), "not both"),
        ("clip.mp4", ("--out", "out", "--track", "best"), "bytetrack"),
        ("clip.mp4", ("--out", "out", "--zone", "a=0,0,1,1"), "zone a"),
        (
            "clip.mp4",
            ("--out", "out", "--line", "a=0,0,1,1", "--zone", "a=0,0,1,1,0,1"),
            "name a",
        ),
    ],
)
def test_wrong_arguments_are_a_sentence(fovea, demo_repository, tmp_path, source, arguments, says):
    shutil.copy(DEMO / "scene-1.jpg", tmp_path)
    write_video(tmp_path / "clip.mp4", 2)
    code, _, err = fovea("predict", MODEL, source, "--repository", demo_repository, *arguments)
    assert (code, (tmp_path / "out").exists()) == (2, False)
    assert says in " ".join(err.split())


def test_originals_are_not_overwritten(fovea, demo_repository, tmp_path):
    shutil.copy(DEMO / "scene-1.jpg", tmp_path)
    given = ("--repository", demo_repository, "--out", ".")
    assert fovea("predict", MODEL, ".", *given)[0] == 0
    assert (tmp_path / "scene-1.jpg").read_bytes() == (DEMO / "scene-1.jpg").read_bytes()
    assert read_image(tmp_path / "annotated" / "scene-1.jpg").shape == (480, 640, 3)
    for result in ("run.json", "predictions.jsonl"):
        (tmp_path / result).unlink()
    assert fovea("predict", MODEL, ".", *given)[0] == 0  # the annotated one is a result
    assert len(lines(tmp_path)) == 1
