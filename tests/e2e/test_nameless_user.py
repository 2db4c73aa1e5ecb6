"""Commands of a user who has a number alone: no name, no home and no variables. OpenShift gives
each pod such a user.
"""

import json
import shutil
import subprocess
import sys

import pytest
from tests.forked import PROGRAM

UID = 1_000_660_000
AS_NAMELESS = ["unshare", f"--map-user={UID}", "env", "-i", "PATH=/usr/bin:/bin"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fovea():
    """Run the command as that user: stdout."""
    try:
        subprocess.run([*AS_NAMELESS, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no process may become another user here: {error}")

    def run(*arguments: object) -> str:
        command = [*AS_NAMELESS, sys.executable, *PROGRAM, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        return done.stdout

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
