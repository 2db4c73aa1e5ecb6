"""The demo model of images and texts, on digits, photographs and captions it was not trained on."""

import numpy as np
import pytest
from tests.conftest import DEMO

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.results.options import PredictOptions

pytest.importorskip("skimage", reason="images are composed from photographs in scikit-image")
pytest.importorskip("sklearn", reason="images are composed from digits in scikit-learn")

from tools.demo_models.captions import HELDOUT, PAIRS, caption, compose

pytestmark = pytest.mark.slow

CAPTIONS = tuple(caption(pair) for pair in PAIRS)
IMAGES = 300


def test_the_caption_of_an_image_is_the_likeliest_of_all(tmp_path):
    source, tokenizer = DEMO / "digits-embed.onnx", DEMO / "digits-embed.json"
    assert source.stat().st_size + tokenizer.stat().st_size < 2_000_000
    card = build(BuildPlan(source, "embed", tmp_path, "onnxruntime", tokenizer=tokenizer))
    # Nobody has given an option.
    assert "--" not in f"{card.reason}{card.preprocess_from}"
    options = PredictOptions(labels=CAPTIONS, top_k=1)
    right = []
    with Engine.open(tmp_path / "embed" / "1") as engine:
        for seed in range(IMAGES):
            pixels, place = compose(seed, "heldout", HELDOUT)
            found = engine.predict(pixels, options)
            right.append(CAPTIONS[found.class_ids[0]] == caption(HELDOUT[place]))
        assert engine.words.computed == len(CAPTIONS)
    assert np.mean(right) >= 0.95
