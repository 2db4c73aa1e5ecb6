"""From raw outputs to detections: one file a family."""

from fovea_engines.heads.base import Head
from fovea_engines.heads.metadata import labels_from_metadata
from fovea_engines.heads.preprocess import default_preprocess
from fovea_engines.heads.recognise import Recognition, open_head, recognise
from fovea_engines.heads.registry import FAMILIES

__all__ = [
    "FAMILIES",
    "Head",
    "Recognition",
    "default_preprocess",
    "labels_from_metadata",
    "open_head",
    "recognise",
]
