"""Which folders of a repository hold a model, and which are none of its business."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.server.registries import adder

from fovea_engines.repository.repository import ModelRepository


def test_a_folder_that_is_no_model_is_none(tmp_path):
    adder(tmp_path, "plus")
    (tmp_path / "clone" / "src").mkdir(parents=True)
    (tmp_path / "clone" / "src" / "model.py").write_text("")
    (tmp_path / "a b" / "1").mkdir(parents=True)
    (tmp_path / "a b" / "1" / "notes.txt").write_text("")
    repository = ModelRepository(tmp_path)
    assert (repository.models(), repository.versionless(), repository.misnamed()) == (
        ("plus",),
        (),
        (),
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_lost_and_found_keeps_no_other_user_from_its_models(tmp_path):
    """Every volume of ext4 has that folder, which root alone may read."""
    adder(tmp_path / "models", "plus")
    (tmp_path / "models" / "lost+found").mkdir(mode=0o700)
    for path in (tmp_path, *tmp_path.parents):
        if path == Path(tempfile.gettempdir()):
            break
        path.chmod(0o755)
    code = (
        "import os, sys; from fovea_engines.repository.repository import ModelRepository;"
        "from pathlib import Path; os.setuid(65534); r = ModelRepository(Path(sys.argv[1]));"
        "print(r.models(), r.versionless(), r.misnamed())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "models")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "('plus',) () ()"
