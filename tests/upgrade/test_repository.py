"""HEAD's commands work on the repository that the older version wrote."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.upgrade.conftest import Fovea
from tests.upgrade.recorded import DATA, load
from tests.upgrade.same import differences

pytestmark = pytest.mark.slow

INSPECTED = load("inspected.json")


@pytest.mark.parametrize("model", INSPECTED)
def test_inspect(model: str, fovea: Fovea, unpacked: Path) -> None:
    code, told, _ = fovea("inspect", model, "--repository", unpacked, "--json")
    old = INSPECTED[model]
    assert code == old["code"]
    new = _json(told) if code == 0 else None
    assert not (found := differences(old["told"], new, f"inspect {model}")), "\n".join(found)


def test_versions(fovea: Fovea, unpacked: Path) -> None:
    code, told, _ = fovea("versions", "digits", "--repository", unpacked, "--json")
    assert code == 0
    assert not (found := differences(load("versions.json"), _json(told), "versions")), "\n".join(
        found
    )


def test_history_goes_on(fovea: Fovea, repository: Path) -> None:
    """The events that were, and behind them those that are added now."""
    place = ("--repository", repository, "--json")
    code, told, _ = fovea("history", "digits", *place)
    assert code == 0
    old = load("history.json")
    assert _json(told) == old
    assert (old["current"], len(old["events"])) == ("1", 3)
    before = (repository / "digits" / "history.jsonl").read_bytes()
    assert fovea("promote", "digits", 2, "--why", "a test", *place)[0] == 0
    assert fovea("rollback", "digits", *place)[0] == 0
    after = _json(fovea("history", "digits", *place)[1])
    assert after["current"] == "1"
    assert [each["number"] for each in after["events"]] == [1, 2, 3, 4, 5]
    assert after["events"][:3] == old["events"]
    # An older server may share the folder: lines are only added.
    assert (repository / "digits" / "history.jsonl").read_bytes().startswith(before)


def test_rollback_takes_back_an_old_promotion(fovea: Fovea, repository: Path) -> None:
    place = ("--repository", repository, "--json")
    assert fovea("promote", "digits", 2, *place)[0] == 0
    assert _json(fovea("history", "digits", *place)[1])["current"] == "2"


def test_what_is_served_is_not_pruned(fovea: Fovea, repository: Path) -> None:
    pruned = fovea("versions", "digits", "--prune", "--keep", 1, "-y", "--repository", repository)
    assert pruned[0] == 0, pruned
    assert (repository / "digits" / "1").is_dir(), "the current version stays"
    assert (repository / "digits" / "2").is_dir(), "the newest version stays"


def test_the_reference_of_a_pipeline_is_compared(fovea: Fovea, repository: Path) -> None:
    images = ("--images", DATA / "images")
    place = ("--repository", repository, "--json")
    code, told, err = fovea("build", "--pipeline", "cards", *images, "--check", *place)
    assert code == 0, err
    assert _json(told)


def _json(text: str) -> Any:
    return json.loads(text)
