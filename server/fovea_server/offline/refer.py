"""Makes and checks the reference of a pipeline, which is its results on sample images."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from fovea_engines.evaluation.agreement.matching import CONF, MARGIN
from fovea_engines.evaluation.samples import MAX_SAMPLES, image_files, read_image
from fovea_engines.repository.card import StageAgreement
from fovea_engines.repository.files import file_sha256
from fovea_engines.repository.repository import ModelRepository
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import FoveaError, InvalidOption
from fovea_preprocess.image import DecodedImage
from fovea_server.models.registry import Registry, make_settings
from fovea_server.pipelines.reference import (
    REFERENCE_FILE,
    PipelineCard,
    SeenImage,
    StageEngine,
    reference_path,
)
from fovea_server.tensors.messages import ImageRequest


def keep_reference(
    folder: Path, engines: dict[str, StageEngine], images: Path
) -> list[StageAgreement]:
    """Store the results of a pipeline on images as its reference.

    Args:
        folder: directory of the pipeline.
        engines: engine of each stage, by name.
        images: directory of the images.

    Returns:
        The agreement of each stage with the new reference.

    Raises:
        InvalidModel: see `reference_path`.
    """
    reference_path(folder)
    files = image_files(images, MAX_SAMPLES)
    found = _detect(folder, files)
    seen = [
        SeenImage.of(file.name, file_sha256(file), each)
        for file, each in zip(files, found, strict=True)
    ]
    card = PipelineCard.of(images.resolve().name, engines, seen)
    ModelRepository(folder.parent).write_beside(
        folder.name, REFERENCE_FILE, card.model_dump_json() + "\n"
    )
    return list(card.agreement(engines, found))


def compare_reference(
    folder: Path, engines: dict[str, StageEngine], images: Path
) -> list[StageAgreement]:
    """Compare the results of a pipeline with its reference, on the same images.

    Args:
        folder: directory of the pipeline.
        engines: engine of each stage, by name.
        images: directory of the images.

    Raises:
        InvalidOption: the pipeline has no reference, or the images are not the images of the
            reference.
    """
    card = PipelineCard.read(folder)
    if card is None:
        raise InvalidOption(
            f"{folder.name} has no reference yet: run the command without --check to create it"
        )
    files = [images / each.name for each in card.images]
    for file, each in zip(files, card.images, strict=True):
        if not file.is_file() or file_sha256(file) != each.sha256:
            raise InvalidOption(
                f"{file} differs from the image in the reference, which was created from "
                f"{card.images_from}: give that folder with --images, or create the reference "
                "again without --check"
            )
    return list(card.agreement(engines, _detect(folder, files)))


def _detect(folder: Path, files: Sequence[Path]) -> list[Detections]:
    with closing(Registry(make_settings(folder))) as registry:
        registry.load(folder.name)
        return asyncio.run(_predict_files(registry, folder.name, files))


async def _predict_files(registry: Registry, name: str, files: Sequence[Path]) -> list[Detections]:
    found = []
    for file in files:
        image = DecodedImage(read_image(file), 1)
        request = ImageRequest([image], PredictOptions(conf=CONF - MARGIN))
        [answer] = await registry.find(name).scheduler.predict(request)
        if isinstance(answer, FoveaError):
            raise answer.with_text(f"{file}: {answer}")
        assert isinstance(answer.found, Detections), "its first model finds objects"
        found.append(answer.found)
    return found
