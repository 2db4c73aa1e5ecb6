"""docs/own-head.md: its class is a head, and finds what its outputs say."""

import numpy as np
from tests.docs.pages import ROOT, blocks

from fovea_engines.heads.head_file import load_head
from fovea_engines.results.options import PredictOptions


def test_its_example_decodes(tmp_path):
    [(_, code)] = blocks((ROOT / "docs" / "own-head.md").read_text())
    (tmp_path / "my_head.py").write_text(code)
    head = load_head(tmp_path / "my_head.py").open(("where", "what"), (200, 400), 2)
    outputs = {"where": np.zeros((2, 9, 4)), "what": np.full((2, 9, 2), -9.0)}
    outputs["where"][1, 3], outputs["what"][1, 3, 1] = [0.5, 0.5, 0.25, 0.5], 9
    assert len(head.decode(outputs, 0, PredictOptions())) == 0
    found = head.decode(outputs, 1, PredictOptions())
    assert found.boxes.tolist() == [[150, 50, 250, 150]]
    assert found.class_ids.tolist() == [1]
