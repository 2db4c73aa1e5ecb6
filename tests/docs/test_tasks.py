"""README, docs/http.md and docs/triton.md list the results of every task, and no other."""

import re

from tests.docs.pages import ROOT

from fovea_engines.results.registry import RESULT_OF
from fovea_engines.results.skeleton import PERSON

DOCS = ROOT / "docs"


def words(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def test_the_tasks():
    page = (ROOT / "README.md").read_text()
    [listed] = re.findall(r"^\*\*\w+ tasks\*\*: (.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    assert sorted(words(listed)) == sorted(RESULT_OF)


def test_the_fields_of_answers():
    answers = (DOCS / "http.md").read_text().split("\n## Answers\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", answers, re.MULTILINE)
    assert sorted(task for tasks, _ in rows for task in words(tasks)) == sorted(RESULT_OF)
    text = " ".join(content for _, content in rows)
    for kind in RESULT_OF.values():
        assert re.search(rf"`{kind.field}\b", text), kind.field


def test_the_tensors():
    section = (DOCS / "triton.md").read_text().split("\n## Images instead of tensors\n")[1]
    listed = words(section.split("\n## ")[0])
    for task, kind in RESULT_OF.items():
        for tensor in kind.outputs(task, PERSON):
            assert tensor.name in listed, tensor.name
