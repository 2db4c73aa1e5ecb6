"""`fovea predict` on files with unusual names, and on files that change."""

import csv
import json
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import orjson
import pytest
from tests.conftest import DEMO

from fovea_server.cli.predict_progress import PredictProgress
from fovea_server.offline import save

pytestmark = pytest.mark.slow

MODEL = "digits"
FORMATS = ("--format", "coco,yolo,csv,annotated")


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def write_video(path: Path, frames: int) -> None:
    code = cv2.VideoWriter.fourcc(*"mp4v")
    video = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, code, 10, (640, 480))
    for number in range(frames):
        video.write(np.roll(cv2.imread(str(DEMO / "scene-1.jpg")), 4 * number, axis=1))
    video.release()


@pytest.fixture
def predict(fovea, demo_repository):
    def run(*arguments: object) -> tuple[int, str, str]:
        return fovea("predict", MODEL, *arguments, "--repository", demo_repository)

    return run


def test_a_frame_and_an_image_of_one_name(predict, tmp_path):
    write_video(tmp_path / "clip.mp4", 2)
    shutil.copy(DEMO / "scene-2.jpg", tmp_path / "clip_000000.jpg")
    assert predict("clip.mp4", "clip_000000.jpg", "--out", "out", *FORMATS)[0] == 0
    labels = sorted(path.name for path in (tmp_path / "out" / "labels").iterdir())
    assert labels == ["clip-2_000000.txt", "clip-2_000001.txt", "clip_000000.txt"]
    document = json.loads((tmp_path / "out" / "predictions.json").read_text())
    names = [image["file_name"] for image in document["images"]]
    assert names == ["clip-2_000000.jpg", "clip-2_000001.jpg", "clip_000000.jpg"]


def test_names_that_are_no_text_or_formulas(predict, tmp_path):
    strange = os.fsdecode(b"a\xff.jpg")
    for name in ("=1+2.jpg", "-3.jpg", "plain.jpg", strange):
        shutil.copy(DEMO / "scene-1.jpg", tmp_path / name)
    assert predict("=1+2.jpg", "./-3.jpg", "plain.jpg", strange, "--out", "out", *FORMATS)[0] == 0
    document = orjson.loads((tmp_path / "out" / "predictions.json").read_bytes())
    names = [image["file_name"] for image in document["images"]]
    assert names == ["=1+2.jpg", "-3.jpg", "plain.jpg", "a\\udcff.jpg"]
    with (tmp_path / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(dict.fromkeys(row["file"] for row in rows)) == [
        "'=1+2.jpg", "'-3.jpg", "plain.jpg", "a\\udcff.jpg",
    ]  # fmt: skip
    # Numbers stay numbers, and negative ones have a sign.
    assert min(float(row["x1"]) for row in rows) < 640
    assert (tmp_path / "out" / "labels" / strange).with_suffix(".txt").exists()


def test_a_replaced_image_is_done_again(predict, tmp_path):
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        shutil.copy(DEMO / "scene-1.jpg", tmp_path / name)
    (tmp_path / "2.jpg").write_bytes(b"no image")
    write_video(tmp_path / "4.mp4", 3)
    given = ("*.jpg", "4.mp4", *FORMATS)
    assert predict(*given, "--out", "out")[0] == 1
    before = lines(tmp_path / "out")
    assert "error" in before[1]
    shutil.copy(DEMO / "scene-2.jpg", tmp_path / "2.jpg")
    write_video(tmp_path / "4.mp4", 5)
    (tmp_path / "out" / "annotated" / "1.jpg").unlink()
    assert predict(*given, "--out", "out", "--resume")[0] == 0
    after = lines(tmp_path / "out")
    assert len(after) == 3 + 5
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1]["detections"]
    # What has not changed is left as it is, and all else is as in one run.
    assert predict(*given, "--out", "whole")[0] == 0
    again, whole = files(tmp_path / "out"), files(tmp_path / "whole")
    assert whole.pop("annotated/1.jpg")
    assert again == whole


def test_replaced_images_count_as_they_are_done_and_are_kept(predict, tmp_path, monkeypatch):
    monkeypatch.setattr(save, "_SHARE", 2)
    for number in range(5):
        shutil.copy(DEMO / "scene-1.jpg", tmp_path / f"{number}.jpg")
    assert predict("*.jpg", "--out", "out")[0] == 0
    before = lines(tmp_path / "out")
    for number in range(4):
        shutil.copy(DEMO / "scene-2.jpg", tmp_path / f"{number}.jpg")
    seen = []

    def interrupted(*given: object) -> None:
        seen.append(given)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PredictProgress, "add", interrupted)
        predict("*.jpg", "--out", "out", "--resume")
    assert [counts.images for _, counts, _ in seen[-1:]] == [1 + 3]
    kept = lines(tmp_path / "out")
    assert kept[:2] != before[:2]
    assert kept[2:] == before[2:]
    assert predict("*.jpg", "--out", "out", "--resume")[0] == 0
    assert lines(tmp_path / "out")[:2] == kept[:2]
    assert lines(tmp_path / "out")[4] == before[4]
