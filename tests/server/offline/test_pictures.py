"""Pictures that a network makes are measured against the right ones, as scikit-image does."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from tests.built import build
from tests.e2e.results import painter
from tests.serving import start_server

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan
from fovea_engines.evaluation.pictures import MAX_PSNR, psnr, ssim
from fovea_engines.repository.accuracy import PictureAccuracy
from fovea_engines.repository.card import EngineCard
from fovea_preprocess.errors import InvalidOption

pytestmark = pytest.mark.slow

COUNT = 3


def noisy(pixels: np.ndarray, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 8, pixels.shape)
    return (pixels + noise).round().clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A network that halves the light and doubles the sides, images, and pictures near that."""
    root = tmp_path_factory.mktemp("pictures")
    (root / "images").mkdir()
    (root / "right").mkdir()
    build(BuildPlan(painter(root / "painter.onnx"), "painter", root / "models", "onnxruntime"))
    for seed in range(COUNT):
        small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)).astype(np.uint8)
        image = cv2.resize(small, (40, 24), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(root / "images" / f"{seed}.png"), image)
        large = cv2.resize(image // 2, (80, 48), interpolation=cv2.INTER_NEAREST)
        cv2.imwrite(str(root / "right" / f"{seed}.png"), noisy(large, seed))
    return root


def of_skimage(want: np.ndarray, have: np.ndarray) -> tuple[float, float]:
    alike = structural_similarity(
        want,
        have,
        channel_axis=2,
        data_range=255,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    return alike, peak_signal_noise_ratio(want, have)


@pytest.mark.parametrize("size", [(11, 11), (40, 57)])
def test_figures_are_those_of_scikit_image(size):
    want = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
    want = cv2.GaussianBlur(want, (5, 5), 2)
    for have in (noisy(want, 1), 255 - want, np.full_like(want, 90)):
        assert (ssim(want, have), psnr(want, have)) == pytest.approx(of_skimage(want, have))
    assert ssim(want, want) == pytest.approx(1)
    assert psnr(want, want) == MAX_PSNR


def test_an_engine_and_a_server_have_the_same_figures(place, fovea, tmp_path):
    server = start_server(place / "models", tmp_path)
    asked = ("eval", "painter", "--data", place / "right", "--images", place / "images", "--json")
    figures = []
    for where in (("--repository", place / "models"), ("--url", server.url)):
        code, out, err = fovea(*asked, *where)
        assert code == 0, err
        figures.append(json.loads(out))
    with Client(server.url) as client:
        made = [client.predict("painter", f).image for f in sorted(place.glob("images/*"))]
    assert server.stop() == 0
    assert figures[0] == figures[1]
    wanted = [
        of_skimage(cv2.imread(str(file))[..., ::-1], each.picture.pixels)
        for file, each in zip(sorted(place.glob("right/*")), made, strict=True)
    ]
    alike, ratio = np.mean(wanted, axis=0)
    assert figures[0]["ssim"] == pytest.approx(alike, abs=1e-3)
    assert figures[0]["psnr"] == pytest.approx(ratio, abs=1e-2)
    assert 0.5 < alike < 0.999
    code, out, _ = fovea(*asked[:-1], "--repository", place / "models")
    assert code == 0
    assert "PSNR, dB" in out


def test_a_build_measures_them(place, tmp_path):
    given = {"data": place / "right", "images": place / "images"}
    card = build(BuildPlan(place / "painter.onnx", "p", tmp_path, "onnxruntime", **given))
    found = card.accuracy["fp32"]
    assert isinstance(found, PictureAccuracy)
    assert (found.images, found.figure) == (COUNT, found.ssim)
    assert EngineCard.from_json(card.to_json()) == card


def test_files_that_do_not_belong_together(place, fovea, tmp_path):
    images, where = place / "images", ("--repository", place / "models")
    code, _, err = fovea("eval", "painter", "--data", images, "--images", place / "right", *where)
    assert (code, "images of the same size" in " ".join(err.split())) == (2, True)
    (tmp_path / "right").mkdir()
    cv2.imwrite(str(tmp_path / "right" / "9.png"), np.zeros((20, 20, 3), np.uint8))
    code, _, err = fovea("eval", "painter", "--data", "right", "--images", images, *where)
    assert (code, "does not exist" in err) == (2, True)
    maps = tmp_path / "maps"
    maps.mkdir()
    cv2.imwrite(str(maps / "0.png"), np.zeros((24, 40), np.uint8))
    code, _, err = fovea("eval", "painter", "--data", "maps", "--images", images, *where)
    assert (code, "colour images" in err) == (2, True)
    small = np.zeros((10, 20, 3), np.uint8)
    with pytest.raises(InvalidOption, match="11"):
        ssim(small, small)
