"""The spec as a value that goes into the engine card."""

import json

from fovea_preprocess.spec import PreprocessSpec

SPEC = PreprocessSpec(384, 640, anchor="top-left", mean=(0.1, 0.2, 0.3), max_scale=1.0)


def test_json_there_and_back() -> None:
    back = PreprocessSpec.from_json(json.loads(json.dumps(SPEC.to_json())))
    assert back == SPEC
    assert hash(back) == hash(SPEC)
    assert back.digest == SPEC.digest


def test_digest_tells_specs_apart() -> None:
    assert len({SPEC.digest, PreprocessSpec(384, 640).digest, PreprocessSpec(640, 384).digest}) == 3


def test_row_shape() -> None:
    assert PreprocessSpec(384, 640).row_shape == (3, 384, 640)
    assert PreprocessSpec(384, 640, layout="NHWC").row_shape == (384, 640, 3)
