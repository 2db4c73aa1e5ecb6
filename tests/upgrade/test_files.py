"""HEAD's commands go on with the files of an older version: models, captures and predictions."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.keyed import until
from tests.serving import RunningServer
from tests.upgrade.compare import check_same
from tests.upgrade.conftest import Fovea, Responses
from tests.upgrade.recording import DATA, TOUCHED, load

pytestmark = pytest.mark.slow

INSPECTED = load("inspected.json")
CAPTURES = DATA / "captures"


@pytest.mark.parametrize("model", INSPECTED)
def test_inspect(model: str, fovea: Fovea, unpacked: Path) -> None:
    code, out, _ = fovea("inspect", model, "--repository", unpacked, "--json")
    old = INSPECTED[model]
    assert code == old["code"]
    check_same(old["told"], json.loads(out) if code == 0 else None, f"inspect {model}")


def test_versions(fovea: Fovea, repository: Path) -> None:
    place = ("--repository", repository)
    code, out, _ = fovea("versions", "digits", *place, "--json")
    assert code == 0
    check_same(load("versions.json"), json.loads(out), "versions")
    assert fovea("versions", "digits", "--prune", "--keep", 1, "-y", *place)[0] == 0
    for version in ("1", "2"):  # the current one and the newest one
        assert (repository / "digits" / version).is_dir()


def test_history(fovea: Fovea, repository: Path) -> None:
    """HEAD adds its events to the recorded ones."""
    place = ("--repository", repository, "--json")
    code, out, _ = fovea("history", "digits", *place)
    assert code == 0
    old = load("history.json")
    assert json.loads(out) == old
    assert (old["current"], len(old["events"])) == ("1", 3)
    file = repository / "digits" / "history.jsonl"
    before = file.read_bytes()
    for command, current in ((("promote", "digits", 2), "2"), (("rollback", "digits"), "1")):
        assert fovea(*command, *place)[0] == 0
        after = json.loads(fovea("history", "digits", *place)[1])
        assert after["current"] == current
    assert [each["number"] for each in after["events"]] == [1, 2, 3, 4, 5]
    assert after["events"][:3] == old["events"]
    # An older server may share the folder: HEAD only adds lines.
    assert file.read_bytes().startswith(before)


def test_the_reference_of_a_pipeline_is_compared(fovea: Fovea, unpacked: Path) -> None:
    images = ("--images", DATA / "images")
    code, out, err = fovea(
        "build", "--pipeline", "cards", *images, "--check", "--repository", unpacked, "--json"
    )
    assert code == 0, err
    assert json.loads(out)


def test_captures_are_listed_and_purged(fovea: Fovea, tmp_path: Path) -> None:
    captures = shutil.copytree(CAPTURES, tmp_path / "captures")
    code, out, _ = fovea("capture", "ls", "captures", "--json")
    assert code == 0
    assert json.loads(out) == load("captured.json")
    code, out, err = fovea("capture", "purge", "captures", "--json", "-y")
    assert code == 0, err
    assert json.loads(out)["deleted"] == 2
    assert not [*captures.rglob("predictions.json")]


@pytest.mark.parametrize("form", ["coco", "yolo", "label-studio", "cvat"])
def test_captures_are_exported(form: str, fovea: Fovea, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _, err = fovea(
        "capture", "export", CAPTURES, "--model", "digits", "--format", form, "--out", out
    )
    assert code == 0, err
    found = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.*"))
    assert found == load("exported.json")[form]
    images = [path.read_bytes() for path in (out / "images").iterdir()]
    sent = [(DATA / "images" / name).read_bytes() for name in ("scene.jpg", "other.jpg")]
    assert sorted(images) == sorted(sent)


def test_new_captures_are_like_the_old(server: RunningServer, responses: Responses) -> None:
    """HEAD follows the rules of the recorded fovea.toml, and keeps the form of the captures."""
    folder = server.log.parent / "captures"
    old = {path.relative_to(CAPTURES) for path in CAPTURES.rglob("predictions.json")}

    def added() -> list[Path]:
        found = {path.relative_to(folder) for path in folder.rglob("predictions.json")}
        assert old <= found
        return sorted(path for path in found - old if path.parts[0] == "digits")

    until(added)
    before, after = (
        json.loads(path.read_text()) for path in (CAPTURES / min(old), folder / added()[0])
    )
    check_same(_first_entries(before), _first_entries(after), momentary=True)


def _first_entries(document: Any) -> Any:
    """Keep the first entry of each list."""
    if isinstance(document, dict):
        return {key: _first_entries(each) for key, each in document.items()}
    if isinstance(document, list):
        return [_first_entries(each) for each in document[:1]]
    return document


def test_predictions_are_resumed(fovea: Fovea, tmp_path: Path, unpacked: Path) -> None:
    """HEAD keeps the recorded predictions, adds the image that is new, and writes all of them."""
    shutil.copytree(DATA / "predicted", tmp_path / "predicted")
    file = tmp_path / "predicted" / "predictions.jsonl"
    (tmp_path / "few").mkdir()
    for source, name in {"scene": "scene", "digit": "digit", "other": "second"}.items():
        copy = shutil.copyfile(DATA / "images" / f"{source}.jpg", tmp_path / "few" / f"{name}.jpg")
        os.utime(copy, (TOUCHED, TOUCHED))
    # A changed score shows that a prediction was kept, and not computed again.
    marked = [json.loads(line) for line in file.read_text().splitlines()]
    for line in marked:
        line["detections"][0]["score"] = 0.98765
    file.write_text("".join(f"{json.dumps(line)}\n" for line in marked))
    command = ("predict", "digits", "few", "--repository", unpacked, "--out", "predicted")
    # The older version used the newest version by default, and HEAD uses the current one.
    command += ("--format", "coco,csv", "--resume", "--version", 2)
    code, _, err = fovea(*command, "--conf", 0.5)
    assert code == 2
    assert "conf" in err
    code, _, err = fovea(*command, "--conf", 0.4)
    assert code == 0, err
    found = {each["file"]: each for each in map(json.loads, file.read_text().splitlines())}
    assert found.keys() == {"few/scene.jpg", "few/digit.jpg", "few/second.jpg"}
    for line in marked:
        assert found[line["file"]] == line
    added = found["few/second.jpg"]
    assert added.keys() == marked[0].keys()
    assert added["detections"]
    coco = json.loads((tmp_path / "predicted" / "predictions.json").read_text())
    assert len(coco["images"]) == 3
    assert sum(each["score"] == 0.98765 for each in coco["annotations"]) == 2
