"""COCO's own reader of run lengths, which knows nothing of ours."""

import warnings

import numpy as np
from pycocotools import mask as coco


def decoded(run_lengths):
    """The pixels of run lengths, uint8 [height, width] of 0 and 1."""
    with warnings.catch_warnings():
        # It is compiled against the arrays of an older numpy.
        warnings.simplefilter("ignore", DeprecationWarning)
        return np.asarray(coco.decode(run_lengths))
