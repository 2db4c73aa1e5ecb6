"""Predicts all images of sources: reads files ahead, predicts in threads, keeps the order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import TypeVar

from fovea_client import ImageError, ServerError, UnexpectedAnswer
from fovea_preprocess.errors import InvalidImage, InvalidResult
from fovea_preprocess.image import DecodedImage
from fovea_server.offline.entry import Entry, InputImage
from fovea_server.offline.formats.annotated import Drawn
from fovea_server.offline.predictors import IN_FLIGHT, ImagePrediction, Predictor
from fovea_server.offline.sources import Source, Stamp, stamp_of
from fovea_server.offline.video import VideoHeader, read_frames

Thing = TypeVar("Thing")
Done = TypeVar("Done")

_PAUSE_S = 0.05

_BROKEN = ImageError(InvalidImage.code, "this frame cannot be decoded")

Draw = Callable[[Entry, InputImage], Drawn | None]


def map_in_order(
    work: Callable[[Thing], Done], things: Iterable[Thing], *, threads: int, ahead: int
) -> Generator[Done]:
    """Call `work` for each thing in threads, and yield the results in the order of the things.

    At most `ahead` things are taken before the oldest result is yielded, so memory is bounded. An
    error of `work` is raised when its result is due. An error of the iterable `things` is raised at
    once. If the caller closes the generator, work that has not begun is dropped.
    """
    waiting: deque[Future[Done]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="predict")
    try:
        for thing in things:
            waiting.append(pool.submit(work, thing))
            if len(waiting) == ahead:
                # This thread takes a core from the other threads each time it wakes up. So it waits
                # until several results are done.
                futures.wait((waiting[(ahead - threads) // 2],), timeout=_PAUSE_S)
                yield waiting.popleft().result()
                while waiting and waiting[0].done():
                    yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one image.

    Attributes:
        entry: the image with its result or error.
        prediction: the prediction; None if it failed, or if the result is from an earlier run.
        drawn: the image with the result drawn into it; None if nothing was drawn.
        is_new: False if the result is from an earlier run.
        image: the image that was predicted; None unless `keep_images` was set.
        time_s: time of the frame in its video, in seconds; only for videos.
    """

    entry: Entry
    prediction: ImagePrediction | None = None
    drawn: Drawn | None = None
    is_new: bool = True
    image: InputImage | None = None
    time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Item:
    source: Source
    frame: int | None
    image: InputImage | ImageError
    stamp: Stamp | None
    known: Entry | None = None
    time_s: float = 0.0


def answers(
    predictor: Predictor,
    sources: Iterable[Source],
    *,
    draw: Draw | None = None,
    known: Iterable[Entry] = (),
    keep_images: bool = False,
) -> Generator[Outcome]:
    """Yield an outcome for each image; the outcome of an image that cannot be read has an error.

    Args:
        predictor: predicts the images.
        sources: images and videos.
        draw: draws a result into its image; None if no images are drawn.
        known: entries of an earlier run for the first images of the sources. These images are not
            predicted again. They are drawn if `draw` is given; otherwise they have no outcome.
        keep_images: put the images into the outcomes.

    Raises:
        FoveaError: an error that every other image would also cause, for example a server that does
            not respond.
    """

    def answer(item: _Item) -> Outcome:
        prediction, entry = None, item.known
        if entry is None:
            found = _predict(predictor, item.image)
            prediction = None if isinstance(found, ImageError) else found
            result = found if isinstance(found, ImageError) else found.result
            entry = Entry(item.source, item.frame, result, item.stamp)
        drawn = None
        if draw is not None and isinstance(item.image, InputImage):
            try:
                drawn = draw(entry, item.image)
            except (InvalidImage, InvalidResult) as error:
                # The drawing may fail for a predicted image: the server may have decoded an image
                # that exceeds the limits of this machine.
                entry = replace(entry, result=ImageError(error.code, str(error)))
        kept = item.image if keep_images and isinstance(item.image, InputImage) else None
        return Outcome(
            entry,
            prediction,
            drawn,
            is_new=item.known is None,
            image=kept,
            time_s=item.time_s,
        )

    def items() -> Iterator[_Item]:
        read = chain.from_iterable(_read(source) for source in sources)
        for item, entry in zip(read, chain(known, repeat(None)), strict=False):
            if entry is None or draw is not None:
                yield replace(item, known=entry)

    return map_in_order(answer, items(), threads=predictor.threads, ahead=IN_FLIGHT)


def _predict(predictor: Predictor, image: InputImage | ImageError) -> ImagePrediction | ImageError:
    if isinstance(image, ImageError):
        return image
    try:
        return predictor.predict(image)
    except (InvalidImage, InvalidResult) as error:
        return ImageError(error.code, str(error))
    except UnexpectedAnswer as error:
        return ImageError(InvalidResult.code, str(error))
    except ServerError as error:
        if not error.of_one_image:
            raise
        return ImageError(error.code, error.message)


def _read(source: Source) -> Iterator[_Item]:
    if not source.is_video:
        yield _read_file(source)
        return
    # The stamp (size and modification time) is read first. If the file is replaced meanwhile, the
    # stamp is that of the old file, and a resumed run predicts the new file.
    stamp = source.stamp
    number = None
    try:
        for frame in read_frames(source.path, source.every):
            number = frame.number
            image: InputImage | ImageError = _BROKEN
            if frame.pixels is not None:
                image = InputImage(DecodedImage(frame.pixels, orientation=1))
            yield _Item(source, number, image, stamp, time_s=frame.time_s)
    except InvalidImage as error:
        missing = (
            None if source.path.exists() else ImageError("not_found", "the file does not exist")
        )
        yield _Item(source, number, missing or ImageError(error.code, str(error)), stamp)


def _read_file(source: Source) -> _Item:
    try:
        with source.path.open("rb", buffering=0) as file:
            stamp = stamp_of(os.fstat(file.fileno()))
            return _Item(source, None, InputImage(file.readall()), stamp)
    except FileNotFoundError:
        error = ImageError("not_found", "the file does not exist")
    except OSError as refused:
        error = ImageError("invalid_request", f"cannot be read: {refused.strerror}")
    return _Item(source, None, error, source.stamp)


def count_images(sources: Iterable[Source]) -> int:
    """Return the number of images and frames.

    The number of a video's frames is read from its header.
    """
    return sum(_frames(source) if source.is_video else 1 for source in sources)


def _frames(video: Source) -> int:
    try:
        return max(1, -(-VideoHeader.read(video.path).frames // video.every))
    except InvalidImage:
        return 1
