"""Tables of texts and attributes: what counts, from an engine and from a server alike."""

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from tests.built import build
from tests.e2e.results import AS_IT_IS, LABELS, attributes, reader, sigmoids
from tests.serving import start_server

from fovea_client import Client, ImageResult
from fovea_engines.build.acceptance import rejection
from fovea_engines.build.plan import BuildPlan
from fovea_engines.evaluation.label_tables import Judged, read_table
from fovea_engines.repository.accuracy import AttributeAccuracy, TextAccuracy
from fovea_engines.repository.card import EngineCard
from fovea_preprocess.errors import InvalidOption, NotFound

pytestmark = pytest.mark.slow

COUNT = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A repository of three networks, and images of one colour each."""
    root = tmp_path_factory.mktemp("tables")
    for write, labels in ((attributes, LABELS), (sigmoids, LABELS), (reader, None)):
        source = write(root / f"{write.__name__}.onnx")
        plan = {"preprocess": AS_IT_IS, "labels": labels}
        build(BuildPlan(source, write.__name__, root / "models", "onnxruntime", **plan))
    colours = np.random.default_rng(2).integers(0, 256, (COUNT, 3))
    for number, colour in enumerate(colours):
        cv2.imwrite(str(root / f"{number}.png"), np.full((30, 40, 3), colour, np.uint8))
    return root


@pytest.fixture(scope="module")
def server(place, tmp_path_factory):
    running = start_server(place / "models", tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


@pytest.fixture
def answers(place, server, monkeypatch):
    """Return what a model of the server says of each image."""
    monkeypatch.chdir(place)

    def ask(model: str) -> list[ImageResult]:
        with Client(server.url) as client:
            return [client.predict(model, place / f"{at}.png").image for at in range(COUNT)]

    return ask


def write(path: Path, rows) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def test_texts(tmp_path):
    for name in "abcd":
        cv2.imwrite(str(tmp_path / f"{name}.png"), np.zeros((2, 2, 3), np.uint8))
    lines = tmp_path / "rec_gt.txt"
    lines.write_text("a.png\tkitten\nb.png\tA 1\n\nc.png\t日本\r\nd.png\tx\ty\n", encoding="utf-8")
    rows = [["file", "Text"], ["a.png", "kitten"], ["b.png", "A 1"], ["c.png", "日本"]]
    table = write(tmp_path / "t.csv", [*rows, ["d.png", "x\ty"]])
    marked = tmp_path / "marked.csv"
    marked.write_text(table.read_text("utf-8"), "utf-16")
    found = {"a.png": "sitting", "b.png": "A 1", "c.png": "", "d.png": "x\ty"}
    measured = [
        read_table(each).measure(lambda path: found[path.name]) for each in (lines, table, marked)
    ]
    assert measured[0] == measured[1] == measured[2]
    similarity = (4 / 7 + 1 + 0 + 1) / 4
    assert measured[0] == TextAccuracy(4, 0.5, pytest.approx(similarity), 5 / 14)
    assert (
        read_table(lines).sha256() != read_table(lines).keep_images([tmp_path / "a.png"]).sha256()
    )


def test_attributes(tmp_path):
    for name in "abc":
        cv2.imwrite(str(tmp_path / f"{name}.png"), np.zeros((2, 2, 3), np.uint8))
    table = write(
        tmp_path / "t.csv",
        [("image", "kind", "hat", "bag"), ("a.png", "car", 1, -1), ("b.png", "van", 0, 1),
         ("c.png", "", 1, "")],
    )  # fmt: skip
    kinds, wears = frozenset(("car", "van")), frozenset(("hat", "bag"))
    says = {
        "a.png": ("car", {"hat"}),
        "b.png": ("car", {"hat", "bag"}),
        "c.png": ("van", {"hat"}),
    }

    def judge(path):
        kind, worn = says[path.name]
        return {
            "kind": Judged(kinds, frozenset([kind])),
            "wears": Judged(wears, frozenset(worn)),
        }

    shares = {"kind": 0.5, "hat": pytest.approx(2 / 3), "bag": 1.0}
    mean = pytest.approx((0.5 + 2 / 3 + 1) / 3)
    found = read_table(table).measure(judge)
    assert found == AttributeAccuracy(3, mean, pytest.approx(2 / 3), shares)

    for rows, what in (
        ([("image", "kind"), ("a.png", "lorry")], "has 'lorry' in the column kind"),
        ([("image", "shape"), ("a.png", "car")], "has the column 'shape'"),
        ([("image", "hat"), ("a.png", "yes")], "write 1 or 0"),
        ([("image", "hat"), ("a.png", "")], "has no label in any column"),
    ):
        with pytest.raises(InvalidOption, match=what):
            read_table(write(tmp_path / "wrong.csv", rows)).measure(judge)


@pytest.mark.parametrize(
    ("name", "text", "error", "what"),
    [
        ("a.txt", "a.png text\n", InvalidOption, "line 1: the line must have a path, a tab"),
        ("a.csv", "image,kind\na.png\n", InvalidOption, "line 2: the line must have 2 columns"),
        ("a.csv", "image\na.png\n", InvalidOption, "has no labels"),
        ("a.csv", "", InvalidOption, "has no labels"),
        ("a.tsv", "b.png\ttext", NotFound, "does not exist"),
        ("a.txt", b"\xff\xfe\x00", InvalidOption, "in UTF-8"),
    ],
)
def test_tables_that_are_none(tmp_path, name, text, error, what):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((2, 2, 3), np.uint8))
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(error, match=what):
        read_table(tmp_path / name)


def test_an_engine_and_a_server_are_measured_alike(fovea, place, server, answers):
    texts = [each.reading.text for each in answers("reader")]
    rows = [("image", "text"), *((f"{at}.png", text) for at, text in enumerate(texts))]
    rows[1] = (rows[1][0], rows[1][1][1:])
    write(place / "texts.csv", rows)
    judged = [
        {each.name: each.classes[0].class_name for each in one.attributes}
        for one in answers("attributes")
    ]
    rows = [(f"{at}.png", each["type"], each["color"]) for at, each in enumerate(judged)]
    rows[0] = (rows[0][0], rows[0][1], "green" if rows[0][2] == "red" else "red")
    write(place / "kinds.csv", [("image", "type", "color"), *rows])
    worn = [
        {each.class_name for each in one.attributes[0].classes if each.score >= 0.5}
        for one in answers("sigmoids")
    ]
    rows = [(f"{at}.png", *(int(name in each) for name in LABELS)) for at, each in enumerate(worn)]
    write(place / "worn.csv", [("image", *LABELS), *rows])
    figures = {}
    for model, data in (("reader", "texts"), ("attributes", "kinds"), ("sigmoids", "worn")):
        asked = ("eval", model, "--data", f"{data}.csv", "--json")
        for where in (("--repository", "models"), ("--url", server.url)):
            code, out, err = fovea(*asked, *where)
            assert code == 0, err
            document = json.loads(out)
            assert figures.setdefault(model, document) == document
    wrong = 1 - 1 / COUNT
    assert figures["reader"]["exact"] == pytest.approx(wrong)
    assert figures["attributes"]["per_class"] == {"type": 1, "color": pytest.approx(wrong)}
    assert figures["attributes"]["all_right"] == pytest.approx(wrong)
    assert figures["sigmoids"]["mean"] == 1
    code, out, _ = fovea("eval", "reader", "--data", "texts.csv", "--repository", "models")
    assert code == 0
    assert "character error rate" in out
    assert "class" not in out


def test_labels_of_another_task_and_options_without_effect(fovea, place, monkeypatch):
    monkeypatch.chdir(place)
    write(place / "one.csv", [("image", "type"), ("0.png", "car")])
    write(place / "line.csv", [("image", "text"), ("0.png", "car")])
    for arguments, what in (
        (("reader", "--data", "one.csv"), "a column for each attribute, but the model's task"),
        (("attributes", "--data", "line.csv"), "has texts, but the model's task is"),
        (("attributes", "--data", "one.csv", "--classes", "car"), "does not apply to tables"),
        (("attributes", "--data", "one.csv", "--plot", "x.svg"), "leave --plot out"),
    ):
        code, _, err = fovea("eval", *arguments, "--repository", "models")
        assert code == 2
        assert what in " ".join(err.split())


def test_a_build_measures_texts_and_judges_their_loss(place, answers):
    texts = [each.reading.text for each in answers("reader")]
    (place / "rec_gt.txt").write_text("".join(f"{i}.png\t{t}\n" for i, t in enumerate(texts)))
    plan = {"preprocess": AS_IT_IS, "data": place / "rec_gt.txt"}
    card = build(BuildPlan(place / "reader.onnx", "r", place / "other", "onnxruntime", **plan))
    assert card.accuracy["fp32"] == TextAccuracy(COUNT, 1.0, 1.0, 0.0)
    assert EngineCard.from_json(card.to_json()) == card
    assert "| edit similarity | 1.000 |" in (place / "other" / "r" / "1" / "card.md").read_text()
    card = EngineCard.from_json(card.to_json() | {"precision": "int8"})
    card.accuracy["int8"] = TextAccuracy(COUNT, 0.5, 0.9, 0.1)
    assert "exact match falls from 1.000 to 0.500" in rejection(card, 0.1)
