"""Writes captures in the formats of annotation tools and training programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zipfile import ZIP_DEFLATED, ZipFile

from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_preprocess.errors import InvalidOption, InvalidResult
from fovea_server.integrations.label_studio.config import Control, spelling
from fovea_server.integrations.label_studio.regions import regions
from fovea_server.monitoring.captures import StoredCapture, entry_of, read_model
from fovea_server.offline.entry import Entry, Result
from fovea_server.offline.formats import coco, yolo
from fovea_server.offline.formats.names import class_names
from fovea_server.offline.predictors import ModelInfo
from fovea_server.tensors.messages import ImageResult

IMAGES = "images"

# Controls in Label Studio's labelling interface, for each task whose results it can show.
_CONTROLS: Mapping[str, Sequence[str]] = {
    "detect": ("RectangleLabels",),
    "obb": ("RectangleLabels",),
    "text": ("RectangleLabels",),
    "pose": ("RectangleLabels", "KeyPointLabels"),
    "segment": ("PolygonLabels",),
    "semantic": ("PolygonLabels",),
    "classify": ("Choices",),
}


def export(captured: Sequence[StoredCapture], form: str, out: Path, images_at: str) -> None:
    """Write captures of one model into a directory, with their images.

    Args:
        captured: the captures to write; at least one.
        form: name of the format: "coco", "yolo", "label-studio" or "cvat".
        out: directory to write; it must be empty or not exist.
        images_at: for "label-studio", the URL of the directory of images.

    Raises:
        InvalidOption: the directory is not empty, the captures are from several models, or the
            format does not support the task of the captures.
    """
    if out.is_dir() and any(out.iterdir()):
        raise InvalidOption(f"--out {out} is not empty: give an empty folder")
    rows = [(one, one.about()) for one in captured]
    models = sorted({one.model for one in captured})
    if len(models) > 1:
        raise InvalidOption(
            f"the captures are from several models ({', '.join(models)}): choose one with --model"
        )
    with _name_damaged(captured[-1]):
        model = read_model(rows[-1][1])
    if model.task not in (_CONTROLS if form == "label-studio" else Detections.tasks):
        raise InvalidOption(
            f"--format {form} does not support the task {model.task}: choose another format"
        )
    (out / IMAGES).mkdir(parents=True, exist_ok=True)
    entries = list(_copy_images(rows, out / IMAGES))
    sources = [each.source for each in entries]
    match form:
        case "label-studio":
            _label_studio(entries, model, out, images_at)
        case "yolo":
            yolo.write_yolo(entries, sources, model, out)
        case _:
            coco.write_coco(entries, sources, model, out)
    if form == "cvat":
        # CVAT expects COCO annotations at exactly this path in the archive.
        with ZipFile(out / "annotations.zip", "w", ZIP_DEFLATED) as archive:
            archive.write(out / coco.FILE, "annotations/instances_default.json")
        (out / coco.FILE).unlink()


def _copy_images(
    rows: Sequence[tuple[StoredCapture, Mapping[str, Any]]], images: Path
) -> Iterator[Entry]:
    for one, about in rows:
        image = one.image()
        name = f"{one.folder.name}{image.suffix}"
        shutil.copyfile(image, images / name)
        with _name_damaged(one):
            entry = entry_of(images / name, about, name)
            _ = entry.checked
        yield entry


@contextmanager
def _name_damaged(one: StoredCapture) -> Iterator[None]:
    """Add the directory of the capture to an error that its damaged files cause."""
    try:
        yield
    except InvalidResult as error:
        raise error.with_text(f"{one.folder} is damaged ({error}): delete this folder") from error


def _label_studio(entries: Sequence[Entry], model: ModelInfo, out: Path, images_at: str) -> None:
    """Write tasks.json with images and predictions, and config.xml with a labelling interface."""
    results = [result for each in entries if (result := each.checked) is not None]
    seen = {class_id for each in results for class_id in _list_class_ids(each)}
    names = class_names(model.vocabulary.labels, seen)
    controls = [
        Control(kind, kind.lower(), "image", "image", labels, 0.0, False)
        for kind in _CONTROLS[model.task]
        if (labels := {spelling(each): each for each in _labels(kind, names, model)})
    ]
    tasks = []
    for entry, result in zip(entries, results, strict=True):
        found = ImageResult(*result.size, 1, result.found)
        words = replace(result.vocabulary, labels=tuple(names))
        drawn = regions(found, words, controls)
        scores = [each["score"] for each in drawn if "score" in each]
        prediction = {
            "model_version": f"{model.name} {model.version}",
            "score": min(scores, default=0.0),
            "result": drawn,
        }
        address = f"{images_at.rstrip('/')}/{entry.source.name}"
        tasks.append({"data": {"image": address}, "predictions": [prediction]})
    (out / "tasks.json").write_text(json.dumps(tasks), "utf-8")
    (out / "config.xml").write_text(_config(controls), "utf-8")


def _list_class_ids(result: Result) -> list[int]:
    found = result.found
    ids: list[int] = found.class_ids.tolist() if isinstance(found, Detections | Classes) else []
    return ids


def _labels(kind: str, names: Sequence[str], model: ModelInfo) -> Sequence[str]:
    if kind != "KeyPointLabels":
        return names
    return () if model.vocabulary.skeleton is None else model.vocabulary.skeleton.names


def _config(controls: Sequence[Control]) -> str:
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name="image", value="$image")
    for control in controls:
        place = ElementTree.SubElement(view, control.kind, name=control.name, toName="image")
        kind = "Choice" if control.kind == "Choices" else "Label"
        for label in control.labels.values():
            ElementTree.SubElement(place, kind, value=label)
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"
