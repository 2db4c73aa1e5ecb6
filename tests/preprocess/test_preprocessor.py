"""Rows against plain references: what YOLO, YOLOX and torchvision do, written out."""

import threading
from dataclasses import replace
from typing import Any, get_args

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from fovea_preprocess.letterbox import fit
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PixelType, PreprocessSpec

Pixels = NDArray[np.uint8]
YOLO = PreprocessSpec(640, 640)
LEVELS = PreprocessSpec(640, 640, dtype="uint8", layout="NHWC")


def row(spec: PreprocessSpec, pixels: Pixels) -> NDArray[Any]:
    """The middle row of a batch that held rubbish; its neighbours must stay as they were."""
    batch = np.full((3, *spec.row_shape), 77, spec.dtype)
    Preprocessor(spec)(pixels, batch[1])
    assert (batch[::2] == 77).all()
    return batch[1]


def yolo(pixels: Pixels, height: int, width: int, max_scale: float | None = None) -> Pixels:
    ratio = min(height / pixels.shape[0], width / pixels.shape[1], max_scale or np.inf)
    scaled = max(1, round(pixels.shape[1] * ratio)), max(1, round(pixels.shape[0] * ratio))
    across, down = (width - scaled[0]) / 2, (height - scaled[1]) / 2
    top, bottom = round(down - 0.1), round(down + 0.1)
    left, right = round(across - 0.1), round(across + 0.1)
    resized = cv2.resize(pixels, scaled, interpolation=cv2.INTER_LINEAR)
    return np.asarray(
        cv2.copyMakeBorder(resized, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(114,) * 3)
    )


def yolox(pixels: Pixels, height: int, width: int) -> Pixels:
    padded = np.full((height, width, 3), 114, np.uint8)
    ratio = min(height / pixels.shape[0], width / pixels.shape[1])
    scaled = int(pixels.shape[1] * ratio), int(pixels.shape[0] * ratio)
    padded[: scaled[1], : scaled[0]] = cv2.resize(pixels, scaled, interpolation=cv2.INTER_LINEAR)
    return padded


def torchvision(pixels: Pixels, resize: int, crop: int) -> Pixels:
    height, width = pixels.shape[:2]
    short, long = min(width, height), max(width, height)
    longer = int(resize * long / short)
    size = (resize, longer) if width <= height else (longer, resize)
    left, top = round((size[0] - crop) / 2), round((size[1] - crop) / 2)
    resized = Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + crop, top + crop)))


SIZES = [
    (1080, 810),
    (720, 1280),
    (333, 500),
    (667, 1000),
    (50, 8000),
    (1, 1),
    (2, 900),
    (640, 640),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", [(640, 640), (384, 640), (320, 96)])
def test_letterbox_is_yolos(bus: Pixels, size: tuple[int, int], shape: tuple[int, int]) -> None:
    pixels = cv2.resize(bus, size[::-1])
    wanted = yolo(pixels, *shape)
    spec = replace(LEVELS, height=shape[0], width=shape[1])
    assert np.array_equal(row(spec, pixels), wanted)
    tensor = row(replace(YOLO, height=shape[0], width=shape[1]), pixels)
    assert np.abs(tensor - wanted.transpose(2, 0, 1).astype(np.float32) / 255).max() < 1e-7


def test_letterbox_that_may_not_enlarge(bus: Pixels) -> None:
    pixels = bus[100:301, 200:333]
    wanted = yolo(pixels, 640, 640, max_scale=1.0)
    assert np.array_equal(row(replace(LEVELS, max_scale=1.0), pixels), wanted)


@pytest.mark.parametrize("size", [(1080, 810), (333, 500), (1079, 1920), (20, 20)])
def test_top_left_letterbox_is_yoloxs(bus: Pixels, size: tuple[int, int]) -> None:
    pixels = cv2.resize(bus, size[::-1])
    spec = PreprocessSpec(416, 416, anchor="top-left", channels="BGR", scale=1.0)
    wanted = yolox(pixels, 416, 416)[..., ::-1].transpose(2, 0, 1)
    assert np.array_equal(row(spec, pixels), wanted.astype(np.float32))


@pytest.mark.parametrize(
    "size", [(1080, 810), (333, 500), (100, 3000), (256, 256), (90, 61), (449, 123), (200, 80)]
)
def test_center_crop_is_torchvisions(bus: Pixels, size: tuple[int, int]) -> None:
    pixels = cv2.resize(bus, size[::-1])
    spec = PreprocessSpec(224, 224, fit="center-crop", crop_ratio=256 / 224, dtype="uint8")
    wanted = torchvision(pixels, 256, 224).transpose(2, 0, 1)
    # Pillow's fixed-point filter may differ by one where the part begins between two pixels.
    off = np.abs(row(spec, pixels).astype(int) - wanted)
    assert off.max() <= 1
    assert off.mean() < 0.005


def test_center_crop_of_a_long_strip_costs_no_more_than_its_part() -> None:
    strip = np.arange(2_000_000, dtype=np.uint32).astype(np.uint8).reshape(1, -1, 1).repeat(3, -1)
    spec = PreprocessSpec(224, 224, fit="center-crop", dtype="uint8", layout="NHWC")
    assert np.ptp(row(spec, strip)) <= 1


def test_stretch(bus: Pixels) -> None:
    wanted = cv2.resize(bus, (320, 96), interpolation=cv2.INTER_LINEAR)
    assert np.array_equal(row(replace(LEVELS, fit="stretch", height=96, width=320), bus), wanted)


def test_stretch_with_other_filters(bus: Pixels) -> None:
    spec = replace(LEVELS, fit="stretch", height=96, width=320)
    by_pillow = np.asarray(Image.fromarray(bus).resize((320, 96), Image.Resampling.BILINEAR))
    assert np.array_equal(row(replace(spec, resample="antialias"), bus), by_pillow)
    sharper = np.asarray(Image.fromarray(bus).resize((320, 96), Image.Resampling.LANCZOS))
    assert np.array_equal(row(replace(spec, resample="lanczos"), bus), sharper)
    by_area = cv2.resize(bus, (320, 96), interpolation=cv2.INTER_AREA)
    assert np.array_equal(row(replace(spec, resample="area"), bus), by_area)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", ["RGB", "BGR"])
def test_levels_that_are_not_rounded(bus: Pixels, layout: Any, channels: Any) -> None:
    spec = PreprocessSpec(
        96, 96, resample="linear-float", layout=layout, channels=channels,
        mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
    )  # fmt: skip
    box = fit(spec, bus.shape[1], bus.shape[0])
    wanted = np.full((96, 96, 3), 114, np.float32)
    wanted[box.visible] = cv2.resize(bus.astype(np.float32), (box.scaled_width, box.scaled_height))
    if channels == "BGR":
        wanted = wanted[..., ::-1]
    wanted = (wanted / 255 - spec.mean) / spec.std
    if layout == "NCHW":
        wanted = wanted.transpose(2, 0, 1)
    assert np.abs(row(spec, bus) - wanted).max() < 1e-5
    assert np.abs(row(replace(spec, resample="linear"), bus) - wanted).max() > 1e-3
    whole = replace(LEVELS, resample="linear-float")
    assert np.array_equal(row(whole, bus), row(LEVELS, bus))


@given(st.integers(1, 1200), st.integers(1, 1200))
def test_letterbox_with_another_filter(width: int, height: int) -> None:
    grey = np.full((height, width, 3), 200, np.uint8)
    spec = PreprocessSpec(64, 64, resample="antialias", dtype="uint8")
    assert 200 in row(replace(spec, pad=0), grey)
    assert (row(replace(spec, pad=200), grey) == 200).all()


@pytest.mark.parametrize("dtype", get_args(PixelType))
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", ["RGB", "BGR"])
def test_every_form_of_row(bus: Pixels, dtype: Any, layout: Any, channels: Any) -> None:
    spec = PreprocessSpec(
        160, 128, dtype=dtype, layout=layout, channels=channels,
        mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
    )  # fmt: skip
    wanted = yolo(bus, 160, 128).astype(np.float64)
    if channels == "BGR":
        wanted = wanted[..., ::-1]
    if not spec.whole:
        wanted = (wanted / 255 - spec.mean) / spec.std
    if layout == "NCHW":
        wanted = wanted.transpose(2, 0, 1)
    tolerance = {"float32": 1e-6, "float16": 2e-3}.get(dtype, 0)
    assert np.abs(row(spec, bus) - wanted).max() <= tolerance


@settings(max_examples=40)
@given(
    st.integers(1, 300), st.integers(1, 300), st.integers(1, 70), st.integers(1, 70),
    st.sampled_from(["NCHW", "NHWC"]), st.sampled_from(get_args(PixelType)),
)  # fmt: skip
def test_any_size_into_any_size(
    height: int, width: int, rows: int, columns: int, layout: Any, dtype: Any
) -> None:
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)
    spec = PreprocessSpec(rows, columns, layout=layout, dtype=dtype, scale=1.0)
    wanted = yolo(pixels, rows, columns)
    got = row(spec, pixels)
    assert np.array_equal(got, wanted.transpose(2, 0, 1) if layout == "NCHW" else wanted)


@pytest.mark.parametrize("spec", [YOLO, LEVELS])
def test_strided_images_and_rows(bus: Pixels, spec: PreprocessSpec) -> None:
    for pixels in (bus[::2, ::-1], bus[100:700, 50:350], bus.transpose(1, 0, 2), bus[..., ::-1]):
        wanted = row(spec, np.ascontiguousarray(pixels))
        assert np.array_equal(row(spec, pixels), wanted)
        wide = np.zeros((*spec.row_shape[:2], spec.row_shape[2] * 2), spec.dtype)
        Preprocessor(spec)(pixels, wide[:, :, ::2])
        assert np.array_equal(wide[:, :, ::2], wanted)
        assert not wide[:, :, 1::2].any()


def test_wrong_arguments(bus: Pixels) -> None:
    preprocess = Preprocessor(YOLO)
    out = np.zeros(YOLO.row_shape, np.float32)
    frozen = out.copy()
    frozen.flags.writeable = False
    for bad in (out.astype(np.float64), out[:, 1:], out[None], frozen):
        with pytest.raises(ValueError, match="out is"):
            preprocess(bus, bad)
    for pixels in (bus[..., 0], bus[..., :2], bus.astype(np.float32), bus[:0]):
        with pytest.raises(ValueError, match="pixels have type"):
            preprocess(pixels, out)


def test_one_preprocessor_for_many_threads(bus: Pixels) -> None:
    images = [bus[: 200 + 90 * i, : 800 - 70 * i] for i in range(8)]
    wanted = [row(YOLO, photo) for photo in images]
    preprocess = Preprocessor(YOLO)
    batch = np.empty((8, *YOLO.row_shape), np.float32)

    def work(index: int) -> None:
        for _ in range(5):
            preprocess(images[index], batch[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(batch, np.stack(wanted))
