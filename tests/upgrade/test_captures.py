"""HEAD lists and exports the images that the older version kept, and adds its own to them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.keyed import until
from tests.serving import RunningServer
from tests.upgrade.conftest import Answers, Fovea
from tests.upgrade.recorded import DATA, load
from tests.upgrade.same import differences

pytestmark = pytest.mark.slow

KEPT = DATA / "captures"


def test_captures_are_listed(fovea: Fovea, tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "captures")
    code, told, _ = fovea("capture", "ls", "captures", "--json")
    assert code == 0
    assert json.loads(told) == load("captured.json")


@pytest.mark.parametrize("kind", ["coco", "yolo", "label-studio", "cvat"])
def test_captures_are_exported(kind: str, fovea: Fovea, tmp_path: Path) -> None:
    code, _, err = fovea(
        "capture", "export", KEPT, "--model", "digits", "--format", kind, "--out", tmp_path / "out"
    )
    assert code == 0, err
    found = sorted(
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")
    )
    assert found == load("exported.json")[kind]
    images = [path.read_bytes() for path in (tmp_path / "out" / "images").iterdir()]
    sent = [(DATA / "images" / name).read_bytes() for name in ("scene.jpg", "other.jpg")]
    assert sorted(images) == sorted(sent)


def test_captures_are_deleted(fovea: Fovea, tmp_path: Path) -> None:
    copy = shutil.copytree(KEPT, tmp_path / "kept")
    code, told, err = fovea("capture", "purge", copy, "--json", "-y")
    assert code == 0, err
    assert json.loads(told)["deleted"] == 2
    assert not [*copy.rglob("predictions.json")]


def test_new_captures_are_like_the_old(server: RunningServer, answers: Answers) -> None:
    """By the rules of fovea.toml; `predictions.json` of a capture has what it had."""
    folder = server.log.parent / "captures"
    old = {path.relative_to(KEPT) for path in KEPT.rglob("predictions.json")}

    def added() -> list[Path]:
        found = {path.relative_to(folder) for path in folder.rglob("predictions.json")}
        assert old <= found
        return sorted(path for path in found - old if path.parts[0] == "digits")

    until(added)
    new = json.loads((folder / added()[0]).read_text())
    before = json.loads((KEPT / sorted(old)[0]).read_text())
    assert not (found := differences(_shape(before), _shape(new))), found


def _shape(document: Any) -> Any:
    """The first entry of each list, and the kinds of values."""
    if isinstance(document, dict):
        return {key: _shape(each) for key, each in document.items()}
    if isinstance(document, list):
        return [_shape(each) for each in document[:1]]
    return type(document).__name__
