"""HEAD goes on with a run of `fovea predict` that the older version began."""

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.upgrade.conftest import Fovea
from tests.upgrade.recorded import DATA, TOUCHED

pytestmark = pytest.mark.slow


def test_a_run_is_resumed(fovea: Fovea, tmp_path: Path, unpacked: Path) -> None:
    """Finished images stay as they were written, the new one is added, and all files have both."""
    shutil.copytree(DATA / "predicted", tmp_path / "predicted")
    journal = tmp_path / "predicted" / "predictions.jsonl"
    (tmp_path / "few").mkdir()
    for source, name in {"scene": "scene", "digit": "digit", "other": "second"}.items():
        copy = shutil.copyfile(DATA / "images" / f"{source}.jpg", tmp_path / "few" / f"{name}.jpg")
        os.utime(copy, (TOUCHED, TOUCHED))
    # Another score shows that a line was kept, and not computed again.
    lines = journal.read_text().splitlines()
    marked = [json.loads(line) for line in lines]
    for line in marked:
        line["detections"][0]["score"] = 0.98765
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in marked))
    code, _, err = fovea(
        *("predict", "digits", "few", "--repository", unpacked, "--out", "predicted"),
        # The older version took the newest version by default, and this one takes the current one.
        *("--format", "coco,csv", "--conf", 0.4, "--resume", "--version", 2),
    )
    assert code == 0, err
    found = {each["file"]: each for each in map(json.loads, journal.read_text().splitlines())}
    assert found.keys() == {"few/scene.jpg", "few/digit.jpg", "few/second.jpg"}
    for line in marked:
        assert found[line["file"]] == line
    added = found["few/second.jpg"]
    assert added.keys() == marked[0].keys()
    assert added["detections"]
    coco = json.loads((tmp_path / "predicted" / "predictions.json").read_text())
    assert len(coco["images"]) == 3
    assert sum(each["score"] == 0.98765 for each in coco["annotations"]) == 2


def test_other_options_are_refused(fovea: Fovea, tmp_path: Path, unpacked: Path) -> None:
    shutil.copytree(DATA / "predicted", tmp_path / "predicted")
    shutil.copytree(DATA / "images", tmp_path / "few")
    code, _, err = fovea(
        *("predict", "digits", "few", "--repository", unpacked, "--out", "predicted"),
        *("--format", "coco,csv", "--conf", 0.5, "--resume", "--version", 2),
    )
    assert code == 2
    assert "conf" in err
