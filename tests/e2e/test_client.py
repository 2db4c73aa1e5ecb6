"""Both clients against a real server."""

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.conftest import ROOT
from tests.serving import RunningServer

from fovea_client import AsyncClient, Client, ImageError, ImageResult, ServerError
from fovea_preprocess.image import decode_image

pytestmark = pytest.mark.slow

DEPENDENCIES = Path(pytest.__file__).parents[1]
# httpx and numpy, and what they require.
ALONE = ("anyio", "certifi", "h11", "httpcore", "httpx", "idna", "numpy", "numpy.libs")
PREDICT = """
import sys, fovea_client
with fovea_client.Client(sys.argv[1]) as client:
    print(*sorted(each.class_name for each in client.predict("digits", sys.argv[2]).detections))
print(fovea_client.__file__)
"""

Ask = Callable[..., Any]


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest, demo_server: RunningServer) -> Ask:
    """Calls a method of a new client, of either kind."""

    def call(method: str, *arguments: Any, **options: Any) -> Any:
        if request.param is Client:
            with Client(demo_server.url) as client:
                found = getattr(client, method)(*arguments, **options)
                return list(found) if method == "predict_many" else found

        async def wait() -> Any:
            async with AsyncClient(demo_server.url) as client:
                found = getattr(client, method)(*arguments, **options)
                if method == "predict_many":
                    return [each async for each in found]
                return await found

        return asyncio.run(wait())

    return call


def names(result: ImageResult) -> list[str]:
    return sorted(each.class_name for each in result.detections)


@pytest.fixture
def digits(demo_truth: dict[str, list[dict[str, Any]]]) -> list[str]:
    return sorted(each["class_name"] for each in demo_truth["scene-1.jpg"])


def test_every_form_of_an_image(ask: Ask, scene: bytes, digits: list[str], tmp_path: Path) -> None:
    path = tmp_path / "scene.jpg"
    path.write_bytes(scene)
    pixels = decode_image(scene).pixels
    with Image.open(path) as pillow, path.open("rb") as file:
        for image in (scene, path, str(path), file, pixels, pillow):
            assert names(ask("predict", "digits", image).image) == digits
    assert names(ask("predict", "digits", pixels[..., ::-1], channels="BGR").image) == digits


def test_an_address_is_the_servers_to_fetch(ask: Ask, scene: bytes, digits: list[str]) -> None:
    with pytest.raises(ServerError, match="--allow-url") as caught:
        ask("predict", "digits", "http://127.0.0.1:9/a.jpg", conf=0.5)
    assert caught.value.code == "fetch_refused"
    first, second = ask("predict", "digits", [scene, "http://127.0.0.1:9/a.jpg"]).images
    assert names(first) == digits
    assert isinstance(second, ImageError)
    assert second.code == "fetch_refused"


def test_many_images_come_back_in_order(ask: Ask, scene: bytes, second_scene: bytes) -> None:
    one, two = (names(ask("predict", "digits", each).image) for each in (scene, second_scene))
    assert one != two
    images = [scene, second_scene, scene[:5000], scene] * 5
    results = ask("predict_many", "digits", iter(images), in_flight=8, conf=0.25)
    for index, found in enumerate(results):
        if index % 4 == 2:
            assert isinstance(found, ImageError)
            assert found.code == "invalid_image"
        else:
            assert names(found) == (two if index % 4 == 1 else one)
    assert len(results) == len(images)
    with pytest.raises(ServerError, match="not_found"):
        ask("predict_many", "nobody", [scene])


def test_models_cards_and_readiness(ask: Ask, scene: bytes) -> None:
    assert [each.name for each in ask("models")] == ["digits"]
    assert ask("model", "digits").card == ask("card", "digits")
    assert ask("card", "digits")["precision"] == "fp32"
    assert ask("ready")
    assert not ask("ready", "nobody")
    assert ask("annotate", "digits", scene, "image/png").startswith(b"\x89PNG")


def test_tensors(ask: Ask, scene: bytes, digits: list[str]) -> None:
    """An encoded image is a tensor, too, and its options are parameters."""
    image = np.array([scene], object)
    found = ask("infer", "digits", {"images": image}, outputs=["class_names"])
    assert list(found) == ["class_names"]
    assert sorted(name.decode() for name in found["class_names"][0]) == digits
    surest = ask("infer", "digits", {"images": image}, parameters={"max_det": 1})
    assert surest["scores"].shape == (1, 1)
    with pytest.raises(ServerError, match="damaged or incomplete") as caught:
        ask("infer", "digits", {"images": np.array([scene[:50]], object)}, version=1)
    assert caught.value.code == "http_400"


def test_the_wheel_of_the_client_predicts_with_numpy_and_httpx_alone(
    demo_server: RunningServer, scene: bytes, digits: list[str], tmp_path: Path
) -> None:
    (tmp_path / "scene.jpg").write_bytes(scene)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT / "client", check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in (*ALONE, "typing_extensions.py"):
        (packages / name).symlink_to(DEPENDENCIES / name)
    # Python imports from wheels, and without `site` from no other place.
    path = os.pathsep.join(map(str, (wheel, packages)))
    command = [sys.executable, "-S", "-c", PREDICT, demo_server.url, "scene.jpg"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    found, place = done.stdout.splitlines()
    assert found.split() == digits
    assert place.startswith(str(wheel))


def test_a_photograph_of_twelve_megapixels_may_be_an_array(demo_server, scene):
    photo = Image.open(io.BytesIO(scene)).convert("RGB").resize((4000, 3000))
    pixels = np.asarray(photo)
    with Client(demo_server.url) as client:
        found = [client.predict("digits", each) for each in (photo, pixels, encoded(photo))]
    first, *others = [[each.class_name for each in one.detections] for one in found]
    assert first
    assert others == [first, first]


def encoded(photo: Image.Image) -> bytes:
    file = io.BytesIO()
    photo.save(file, "PNG", compress_level=1)
    return file.getvalue()


def test_a_model_is_a_line(ask: Ask) -> None:
    shown = repr(ask("model", "digits"))
    assert shown.startswith("<Model 'digits' version 1: detect, onnxruntime, fp32, 10 classes")
    assert shown.endswith("images [-1, 3, 320, 320], ready>")
