"""Pages of docs/ list the tasks, tensors and flags that there are, and no others."""

import re

import numpy as np
from tests.docs.pages import ROOT, blocks
from tools.reference import pages

from fovea_engines.heads.head_file import load_head
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.registry import RESULT_OF
from fovea_engines.results.skeleton import PERSON

DOCS = ROOT / "docs"


def words(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def test_the_fields_of_answers():
    answers = (
        (DOCS / "reference" / "http.md").read_text().split("\n## Responses\n")[1].split("\n## ")[0]
    )
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", answers, re.MULTILINE)
    assert sorted(task for tasks, _ in rows for task in words(tasks)) == sorted(RESULT_OF)
    text = " ".join(content for _, content in rows)
    for kind in RESULT_OF.values():
        assert re.search(rf"`{kind.field}\b", text), kind.field


def test_the_tensors():
    section = (
        (DOCS / "reference" / "triton.md").read_text().split("\n## Images instead of tensors\n")[1]
    )
    listed = words(section.split("\n## ")[0])
    for task, kind in RESULT_OF.items():
        for tensor in kind.outputs(task, PERSON):
            assert tensor.name in listed, tensor.name


# docs/how-to/own-head.md: its class is a head, and finds what its outputs say.


def test_its_example_decodes(tmp_path):
    [(_, code)] = blocks((ROOT / "docs" / "how-to" / "own-head.md").read_text())
    (tmp_path / "my_head.py").write_text(code)
    head = load_head(tmp_path / "my_head.py").open(("where", "what"), (200, 400), 2)
    outputs = {"where": np.zeros((2, 9, 4)), "what": np.full((2, 9, 2), -9.0)}
    outputs["where"][1, 3], outputs["what"][1, 3, 1] = [0.5, 0.5, 0.25, 0.5], 9
    assert len(head.decode(outputs, 0, PredictOptions())) == 0
    found = head.decode(outputs, 1, PredictOptions())
    assert found.boxes.tolist() == [[150, 50, 250, 150]]
    assert found.class_ids.tolist() == [1]


# docs/reference lists the commands and settings of this version.


def test_the_reference_is_current():
    for file, text in pages().items():
        assert file.read_text() == text, f"{file.name} is old: run `python -m tools.reference`"
