"""docs/tutorials/notebook.ipynb: each cell runs against a server of the demo model."""

import nbclient
import nbformat
import pytest
from tests.docs.pages import ROOT
from tests.serving import start_server

pytestmark = [pytest.mark.real, pytest.mark.smoke]

NOTEBOOK = ROOT / "docs" / "tutorials" / "notebook.ipynb"


def test_every_cell_runs(demo_repository, tmp_path, monkeypatch):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        cell["outputs"] = []
    server = start_server(demo_repository, tmp_path)
    monkeypatch.setenv("FOVEA_URL", server.url)
    folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
    # A cell that raises ends it with the traceback.
    nbclient.NotebookClient(notebook, timeout=120, resources=folder).execute()
    assert server.stop() == 0
    shown = {
        kind for cell in notebook.cells for each in cell["outputs"] for kind in each.get("data", ())
    }
    assert {"image/jpeg", "image/png", "text/html"} <= shown
