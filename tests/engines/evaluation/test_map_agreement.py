"""The agreement of two models' maps is the share of pixels, or of depth, that both have."""

from dataclasses import replace

import numpy as np
import pytest

from fovea_engines.build.acceptance import rejection
from fovea_engines.evaluation.agreement.measure import measure
from fovea_engines.evaluation.reference import Sample
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.repository.figures import WorstImage

SEMANTIC, CLASS_MAP, DEPTH, SALIENCY = (
    FAMILIES[name] for name in ("semantic", "class-map", "depth", "u2net")
)


def agreement(head, *pairs):
    rows = np.zeros((1, 3, 8, 8), np.float32)
    samples = (
        (Sample(str(n), rows, {"out": want}), {"out": have}) for n, (want, have) in enumerate(pairs)
    )
    return measure(head.open(("out",), (8, 8)), samples)


def test_classes_share_the_cells_of_one_class():
    want = np.zeros((1, 8, 8), np.int64)
    have = want.copy()
    have[0, :2] = 3
    figures = agreement(CLASS_MAP, (want, want), (want, have))
    assert figures.shared == figures.quality == pytest.approx(1 - 0.25 / 2)
    assert figures.worst == (WorstImage("1", 0.75, 0.25),)
    assert figures.text("int8") == "maps agree 87.50% on 2 images"
    assert "87.50%" in figures.rows("int8").values()
    logits = np.zeros((1, 3, 8, 8), np.float32)
    logits[0, 1] = 1
    # Other scores of the same classes are no loss.
    assert agreement(SEMANTIC, (logits, 3 * logits)).shared == 1


def test_masks_and_depths_share_what_does_not_differ():
    want = np.zeros((1, 1, 8, 8), np.float32)
    want[..., :4] = 1
    have = want.copy()
    have[..., 1:4] = 0.9
    assert agreement(SALIENCY, (want, have)).shared == pytest.approx(1 - 0.1 * 3 / 8)
    assert agreement(DEPTH, (want + 1, have + 1)).shared == pytest.approx(1 - 0.1 * 3 / 8 / 1.5)
    assert agreement(DEPTH, (0 * want, have)).shared == 0
    assert agreement(DEPTH, (0 * want, 0 * have)).shared == 1
    head = SALIENCY.open(("out",), (8, 8))
    found = head.decode({"out": want}, 0, None)
    other = DEPTH.open(("out",), (8, 8)).decode({"out": want}, 0, None)
    assert found.shared(other) is None


def test_int8_is_refused_by_what_the_maps_share(card):
    want = np.zeros((1, 8, 8), np.int64)
    have = want.copy()
    have[0, :2] = 3
    bad, good = (agreement(CLASS_MAP, (want, each)) for each in (have, want))
    engine = replace(card, family="class-map", precision="int8", accuracy={})
    assert "agrees 0.750 with the source model" in rejection(
        replace(engine, agreement=bad), max_drop=0.02
    )
    assert rejection(replace(engine, agreement=good), max_drop=0.02) is None
