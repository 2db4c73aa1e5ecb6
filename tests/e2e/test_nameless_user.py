"""Commands of a user who has a number alone: no name, no home and no variables. OpenShift gives
each pod such a user.
"""

import json
import shutil
import subprocess
import sys

import pytest
from tests.forked import PROGRAM
from tests.server.registries import adder

UID = 1_000_660_000
# Else typer takes the shell that runs the tests, which is make's.
NO_DETECTION = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=1"
AS_NAMELESS = ["unshare", f"--map-user={UID}", "env", "-i", "PATH=/usr/bin:/bin", NO_DETECTION]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fovea():
    """Run the command as that user: stdout."""
    try:
        subprocess.run([*AS_NAMELESS, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no process may become another user here: {error}")

    def run(*arguments: object, program: tuple[str, ...] = PROGRAM, code: int = 0) -> str:
        command = [*AS_NAMELESS, sys.executable, *program, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        return done.stdout or done.stderr

    return run


def test_versions_change_in_its_name(fovea, demo_versions, tmp_path):
    repository = shutil.copytree(demo_versions, tmp_path / "repository")
    given = ("digits", "--repository", repository)
    assert "current" in fovea("promote", "digits", 1, "--repository", repository)
    assert "current again" in fovea("rollback", *given)
    events = json.loads(fovea("history", *given, "--json"))["events"]
    assert [each["who"] for each in events[-2:]] == [str(UID)] * 2


def test_a_model_is_built_and_used(fovea, demo_model, tmp_path):
    repository = tmp_path / "repository"
    fovea("build", demo_model, "--repository", repository, "--backend", "onnxruntime")
    image = demo_model.with_name("digit.jpg")
    assert json.loads(fovea("predict", "digits", image, "--repository", repository, "--json"))
    assert "fov_" in fovea("key", "add", "anna", "--keys", tmp_path / "keys.json")


def test_commands_need_no_home(fovea, demo_repository, demo_model, tmp_path):
    image = demo_model.with_name("digit.jpg")
    assert "onnxruntime" in fovea("doctor")
    fovea("init", tmp_path / "project")
    assert (tmp_path / "project" / "compose.yaml").exists()
    assert "current" in fovea("versions", "digits", "--repository", demo_repository)
    fovea("edit", demo_model, "--batch", 1, "--out", tmp_path / "edited.onnx")
    fovea("watch", "digits", image, "--repository", demo_repository, "--json")
    assert "--api" in fovea("serve", "--help")
    # Completion has no place but there.
    assert "HOME" in fovea("--install-completion", "bash", code=1)


LOADING = """
import sys
from pathlib import Path
from tests.server.registries import serving
with serving((Path(sys.argv[1]),)) as registry:
    for entry in registry.index():
        print(entry.name, entry.state, entry.reason)
"""


def test_a_folder_that_may_not_be_read_fails_its_model_alone(fovea, tmp_path):
    for name in ("open", "shut", "half"):
        adder(tmp_path, name)
    for denied in (tmp_path / "shut", tmp_path / "half" / "1"):
        denied.chmod(0)
    try:
        found = fovea(tmp_path, program=("-c", LOADING))
        assert "open READY" in found
        assert "shut UNAVAILABLE shut cannot be read: Permission denied" in found
        assert "half UNAVAILABLE half/1 cannot be read: Permission denied" in found
        shown = fovea("inspect", tmp_path)
        assert "open" in shown
        assert "shut 1 cannot be opened" in shown
    finally:
        for denied in (tmp_path / "shut", tmp_path / "half" / "1"):
            denied.chmod(0o700)
