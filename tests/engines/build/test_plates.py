"""RetinaFace for plates: priors are told by plates, and a squeezed batch is put back."""

import numpy as np
import pytest
from tests.engines.plates import BOXES, LARGE_PRIORS, PLACES, PRIORS, retinaface_plate, scene

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.repository.card import NOTHING_SEEN
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = pytest.mark.slow

KINDS = {"retinaface-plate": PRIORS, "retinaface-plate-large": LARGE_PRIORS}


@pytest.fixture
def plates(tmp_path):
    """A folder with an image of plates."""
    folder = tmp_path / "plates"
    folder.mkdir()
    (folder / "plates.png").write_bytes(scene()[0])
    return folder


def check(card, repository, plates):
    """The engine finds all plates, where they are."""
    pixels = read_image(plates / "plates.png")
    with Engine.open(repository / card.name / "1") as engine:
        found = engine.detect(pixels)
    assert len(found) == len(PLACES)
    distances = np.abs(found.boxes[:, None] - BOXES[None]).max(axis=2)
    assert sorted(distances.argmin(axis=1)) == list(range(len(PLACES)))
    assert distances.min(axis=1).max() < 0.5


@pytest.mark.parametrize("squeezed", [False, True], ids=["batch", "squeezed"])
@pytest.mark.parametrize("family", KINDS)
def test_plates_tell_the_priors(tmp_path, plates, family, squeezed):
    source = retinaface_plate(tmp_path / "p.onnx", KINDS[family], squeezed=squeezed)
    card = build(BuildPlan(source, "p", tmp_path / "r", images=plates, preprocess={}))
    assert card.family == family
    assert card.head_doubt is None
    assert [spec.shape[0] for spec in card.outputs] == [1, 1, 1]
    check(card, tmp_path / "r", plates)


@pytest.mark.parametrize("squeezed", [False, True], ids=["batch", "squeezed"])
@pytest.mark.parametrize("family", KINDS)
def test_other_priors_are_refused(tmp_path, plates, family, squeezed):
    [other] = (priors for name, priors in KINDS.items() if name != family)
    source = retinaface_plate(tmp_path / "p.onnx", other, squeezed=squeezed)
    plan = BuildPlan(source, "p", tmp_path / "r", family=family, images=plates, preprocess={})
    times = "1.5" if family == "retinaface-plate" else "0.67"
    with pytest.raises(UnsupportedModel, match=f"sides of its priors are {times} times these"):
        build(plan)


def test_without_plates_it_asks_and_then_says_that_nothing_was_checked(tmp_path):
    source = retinaface_plate(tmp_path / "p.onnx", LARGE_PRIORS)
    with pytest.raises(InvalidOption, match="retinaface-plate-large"):
        build(BuildPlan(source, "p", tmp_path / "r", preprocess={}))
    named = BuildPlan(source, "p", tmp_path / "r", family="retinaface-plate", preprocess={})
    card = build(named)
    assert card.head_doubt == NOTHING_SEEN
    assert card.guess.startswith(f"UNVERIFIED: {NOTHING_SEEN}")


def test_a_squeezed_batch_of_an_old_opset(tmp_path, plates):
    source = retinaface_plate(tmp_path / "p.onnx", squeezed=True, opset=11)
    card = build(BuildPlan(source, "p", tmp_path / "r", images=plates, preprocess={}))
    check(card, tmp_path / "r", plates)
