"""`fovea versions`: what it lists, what it deletes, and what stays."""

import json
import shutil
import sys
from io import StringIO
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def repository(demo_versions, tmp_path) -> Path:
    """The demo model in five versions, of which the third has no card."""
    repository = tmp_path / "repository"
    shutil.copytree(demo_versions, repository)
    for version in ("3", "4", "5"):
        shutil.copytree(repository / "digits" / "1", repository / "digits" / version)
    (repository / "digits" / "3" / "card.json").unlink()
    return repository


def left(repository: Path) -> list[str]:
    return sorted(path.name for path in (repository / "digits").iterdir() if path.is_dir())


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_versions_are_listed(fovea, repository):
    code, out, err = fovea("versions", "digits")
    assert code == 0, err
    rows = [line.split() for line in out.splitlines() if "MB" in line]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[1][2:4] == ["openvino", "fp32"]
    assert rows[2][1:3] == ["-", "-"]
    assert [row[-1] == "current" for row in rows] == [False] * 4 + [True]
    document = json.loads(fovea("versions", repository / "digits" / "2", "--json")[1])
    assert [one["served"] for one in document["versions"]] == [False] * 4 + [True]
    files = (repository / "digits" / "2").iterdir()
    assert document["versions"][1]["size"] == sum(file.stat().st_size for file in files)


def test_what_is_served_and_the_newest_stay(fovea, repository):
    config = repository / "digits" / "config.pbtxt"
    config.write_text("version_policy { specific { versions: [ 2 ] } }")
    size = sum(file.stat().st_size for file in (repository / "digits" / "1").iterdir())
    code, out, err = fovea("versions", "digits", "--prune", "--keep", "3", "--yes")
    assert code == 0, err
    assert "Deleting 1 (" in out
    assert f"Deleted version 1: {size / 1e6:.1f} MB freed." in out
    assert "Without version 1, no earlier version is left for a rollback." in out
    assert left(repository) == ["2", "3", "4", "5"]
    document = json.loads(fovea("versions", "digits", "--prune", "--yes", "--json")[1])
    assert document["deleted"] == [3]
    assert left(repository) == ["2", "4", "5"]
    assert (
        "Nothing to delete: all 3 versions stay."
        in fovea("versions", "digits", "--prune", "--yes")[1]
    )
    assert list(repository.iterdir()) == [repository / "digits"]


def test_a_deleted_version_that_a_rollback_would_restore_is_named(fovea, repository):
    for version in (2, 5):
        assert fovea("promote", "digits", version)[0] == 0
    code, out, err = fovea("versions", "digits", "--prune", "--keep", "1", "--yes")
    assert code == 0, err
    assert "Without version 2, no earlier version is left for a rollback." in out
    assert "Deleted versions 1, 2, 3, 4: " in out
    assert fovea("rollback", "digits")[0] == 2


def test_a_canary_is_listed_with_its_share(fovea, repository):
    assert fovea("promote", "digits", 5)[0] == 0
    assert fovea("promote", "digits", 2, "--canary", "30%")[0] == 0
    rows = [line.split() for line in fovea("versions", "digits")[1].splitlines() if "MB" in line]
    assert (rows[1][-3:], rows[4][-1]) == (["canary", "30", "%"], "current")
    document = json.loads(fovea("versions", "digits", "--json")[1])
    assert [one["canary"] for one in document["versions"]] == [None, 0.3, None, None, None]


def test_a_build_is_in_the_history(fovea, repository):
    rows = fovea("versions", "digits", "--history")[1]
    assert ("build" in rows, "promote" in rows) == (True, False), rows
    [event] = json.loads(fovea("versions", "digits", "--history", "--json")[1])["events"]
    assert (event["action"], event["built"]) == ("promote", True)


def test_what_a_link_leads_to_stays(fovea, repository):
    model = repository / "digits"
    (model / "6").symlink_to("2")
    code, _, err = fovea("versions", "digits", "--prune", "--keep", "1", "--yes")
    assert code == 0, err
    assert left(repository) == ["2", "6"]


@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_it_asks_before_it_deletes(fovea, repository, monkeypatch, answer):
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    code, out, err = fovea("versions", "digits", "--prune")
    assert code == 0, err
    assert "To delete: 1, 2, 3 (" in out
    assert left(repository) == (["4", "5"] if answer == "y" else ["1", "2", "3", "4", "5"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("digits", "--prune"), "--yes"),
        (("digits", "--keep", "3"), "--prune"),
        (("digits", "--prune", "--yes", "--keep", "0"), "1"),
        (("digit",), "'digit'"),
        (("digits", "--url", "ftp://x"), "ftp://x"),
    ],
)
def test_wrong_arguments_are_a_sentence(fovea, repository, arguments, says):
    code, _, err = fovea("versions", *arguments)
    assert (code, says in err) == (2, True), err
    assert len(left(repository)) == 5


def test_a_wrong_configuration_deletes_nothing(fovea, repository):
    (repository / "digits" / "config.pbtxt").write_text("version_policy { specific { } }")
    code, _, err = fovea("versions", "digits", "--prune", "--yes")
    assert (code, "under the version policy of model 'digits'" in err) == (1, True), err
    assert len(left(repository)) == 5
