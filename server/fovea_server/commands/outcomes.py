"""The results of `fovea predict`: each image is predicted, shown, and put into one document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fovea_client import ImageError, ImageResult, Prediction, ServerError
from fovea_preprocess.errors import InvalidImage
from fovea_server.commands.predictors import Predictor

# What is wrong with one image alone; anything else would be wrong with the next one as well.
_OF_ONE_IMAGE = {"invalid_image", "image_too_large", "body_too_large"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one image.

    Attributes:
        path: of the image.
        answer: all that was answered for it, or why there is none.
        saved: where the annotated image went.
    """

    path: Path
    answer: Prediction | ImageError
    saved: Path | None = None


def failed(outcome: Outcome) -> bool:
    """Whether there is no answer for the image."""
    return isinstance(outcome.answer, ImageError)


def each_outcome(predictor: Predictor, images: list[Path], save: Path | None) -> Iterator[Outcome]:
    """Predict one image after the other; with `save`, write each annotated into that folder.

    Raises:
        FoveaError, FoveaClientError, OSError: what would fail the next image as well.
    """
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(images):
        try:
            image = path.read_bytes()
        except OSError as error:
            code = "not_found" if isinstance(error, FileNotFoundError) else "invalid_request"
            yield Outcome(path, ImageError(code, f"cannot be read: {error.strerror}"))
            continue
        try:
            answer = predictor.predict(image)
            saved = None if save is None else _saved(save, path, images[:number])
            if saved is not None:
                saved.write_bytes(predictor.annotate(image))
        except InvalidImage as error:
            yield Outcome(path, ImageError(error.code, str(error)))
        except ServerError as error:
            if error.code not in _OF_ONE_IMAGE:
                raise
            yield Outcome(path, ImageError(error.code, error.message))
        else:
            yield Outcome(path, answer, saved)


def _saved(folder: Path, path: Path, before: list[Path]) -> Path:
    """Where the annotated image goes: never onto the image itself, nor onto another's."""
    twins = sum(other.stem == path.stem for other in before)
    return folder / (path.stem + (f"-{twins + 1}" if twins else "") + "-annotated.jpg")


def show(outcome: Outcome, *, table: bool) -> None:
    """Print a failure on the error stream; a result, when `table`, on the output."""
    if isinstance(outcome.answer, ImageError):
        complain(f"{outcome.path}: {outcome.answer.message}")
    elif table:
        console = Console()
        image = outcome.answer.image
        console.print(Text(f"{outcome.path}  {image.width} x {image.height}", style="bold"))
        console.print(_table(image))
        if outcome.saved is not None:
            console.print(Text(f"saved {outcome.saved}"), soft_wrap=True)


def _table(image: ImageResult) -> Table | Text:
    if image.tensors:
        return Text(
            "\n".join(f"{t.name} {t.data.dtype} {list(t.data.shape)}" for t in image.tensors)
        )
    if not image.detections:
        return Text("nothing found")
    table = Table("class", "score", "x1", "y1", "x2", "y2")
    for column in table.columns[1:]:
        column.justify = "right"
    for found in image.detections:
        corners = (found.box.x1, found.box.y1, found.box.x2, found.box.y2)
        table.add_row(
            Text(found.class_name), f"{found.score:.2f}", *(f"{value:.0f}" for value in corners)
        )
    return table


def complain(text: str) -> None:
    """Say on the error stream what went wrong."""
    Console(stderr=True, soft_wrap=True).print(Text(text, style="red"))


def document(model: str, outcomes: list[Outcome]) -> dict[str, Any]:
    """All answers as if one request had carried all images."""
    answers = [o.answer for o in outcomes if isinstance(o.answer, Prediction)]
    timings = [asdict(answer.timing_ms) for answer in answers]
    slowest = {stage: max(t[stage] for t in timings) for stage in (timings[0] if timings else ())}
    total = {"total": round(sum(t["total"] for t in timings), 3)}
    return {
        "model": answers[0].model if answers else model,
        "version": answers[0].version if answers else None,
        "task": answers[0].task if answers else None,
        "images": [_image_json(outcome.answer) for outcome in outcomes],
        "timing_ms": slowest | total,
    }


def _image_json(answer: Prediction | ImageError) -> dict[str, Any]:
    if isinstance(answer, ImageError):
        return {"error": asdict(answer)}
    image = answer.image
    size = {"width": image.width, "height": image.height, "orientation": image.orientation}
    if not image.tensors:
        return size | {"detections": [asdict(found) for found in image.detections]}
    return size | {
        "tensors": [
            {
                "name": tensor.name,
                "datatype": tensor.data.dtype.name,
                "shape": list(tensor.data.shape),
                "data": tensor.data.ravel().tolist(),
            }
            for tensor in image.tensors
        ]
    }
