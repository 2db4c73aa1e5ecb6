"""Decodes raw outputs into detections, with one file per family."""

from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.heads.metadata import labels_from_metadata
from fovea_engines.detect.heads.preprocess import default_preprocess
from fovea_engines.detect.heads.recognise import Recognition, open_head, recognise
from fovea_engines.detect.heads.registry import FAMILIES

__all__ = [
    "FAMILIES",
    "Head",
    "Recognition",
    "default_preprocess",
    "labels_from_metadata",
    "open_head",
    "recognise",
]
