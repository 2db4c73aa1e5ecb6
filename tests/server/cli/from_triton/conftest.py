"""Writes repositories of Triton, and starts projects from them."""

import shutil

import pytest


@pytest.fixture
def triton(tmp_path, demo_model):
    """Write models of a repository: files of each, as text, or as None for the demo network."""

    def write(**models: dict[str, str | bytes | None]):
        for name, files in models.items():
            (tmp_path / "triton" / name / "1").mkdir(parents=True)
            for file, content in files.items():
                path = tmp_path / "triton" / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                if content is None:
                    shutil.copyfile(demo_model, path)
                else:
                    path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / "triton"

    return write
