"""Checks predictions as Label Studio does: lines [[configuration, prediction]].

Out comes for each [what is wrong, masks of its brushes as rows of 0 and 1, packed, in base64].
"""

import base64
import json
import sys

import numpy as np
from label_studio_sdk.converter.brush import decode_rle
from label_studio_sdk.label_interface import LabelInterface


def mask(region):
    shape = region["original_height"], region["original_width"], 4
    pixels = decode_rle(region["value"]["rle"]).reshape(shape)
    assert (pixels == pixels[..., :1]).all()
    assert set(np.unique(pixels)) <= {0, 255}
    return base64.b64encode(np.packbits(pixels[..., 3] > 0)).decode()


def checked(config, prediction):
    wrong = LabelInterface(config).validate_prediction(prediction, return_errors=True)
    return [wrong, [mask(e) for e in prediction["result"] if e["type"] == "brushlabels"]]


for line in sys.stdin:
    sys.stdout.write(json.dumps([checked(*each) for each in json.loads(line)]) + "\n")
    sys.stdout.flush()
