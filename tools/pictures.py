"""Draws pictures of the docs.

    python -m tools.pictures build ../shared/models/yolov8n.onnx ../shared/data/coco64/calibration
    python -m tools.pictures tasks ../shared/models PHOTOGRAPHS
    python -m tools.pictures page http://127.0.0.1:8000 PHOTOGRAPHS
    python -m tools.pictures stream ../shared/models/yolov8n.onnx ../shared/data/video/VIDEO
    python -m tools.pictures search
    python -m tools.pictures enlarged ../shared/models/chains PHOTOGRAPHS
    python -m tools.pictures attributes ../shared/models ../shared/data/video/VIDEO
    python -m tools.pictures drift
    python -m tools.pictures shadow RETRAINED
    python -m tools.pictures notebook http://127.0.0.1:8000

PHOTOGRAPHS is the folder `skimage/data` of scikit-image, whose pictures are in the public domain.
`build` shows the speed of this machine: run it where nothing else does. `page` takes a server with
yolov8n-pose and yolov8n-seg-320. docs/tutorials/retraining.md trains RETRAINED, an ONNX file.
`notebook` runs docs/tutorials/notebook.ipynb against `make run`, and keeps the outputs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import cv2
import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from fovea_engines.build.build import build as build_engine
from fovea_engines.build.plan import BuildPlan
from fovea_engines.drawing.drawing import draw
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.repository.labels import find_labels
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.new_image import NewImage
from fovea_preprocess.image import decode_image
from fovea_server.monitoring.drift import DriftReport
from fovea_server.monitoring.drift_chart import draw as draw_drift

IMAGES = Path(__file__).parents[1] / "docs" / "images"
NOTEBOOK = IMAGES.parent / "tutorials" / "notebook.ipynb"
DEMO = Path(__file__).parents[1] / "server" / "fovea_server" / "demo"
FONT = ImageFont.load_default(20)
WIDTH = 110
# tasks.jpg: a model, its picture, and the part of it that is shown.
TASKS = (
    ("yolov8n-seg-320", "coffee.png", (slice(None), slice(None))),
    ("yolov8n-pose", "astronaut.png", (slice(None), slice(0, 384))),
    ("mobilenetv2", "chelsea.png", (slice(None), slice(80, 380))),
    ("heads/deeplabv3-mnv2", "astronaut.png", (slice(None), slice(0, 384))),
    ("u2netp", "astronaut.png", (slice(None), slice(0, 384))),
)
HEIGHT, GAP = 340, 6
# search.jpg: what is looked for, among how many drawn images, and how many are shown.
SEARCHES, DRAWN, SHOWN, SIDE = ("a red seven", "a blue two", "yellow 3"), 700, 7, 96
# enlarged.jpg: the part of the photograph that the network gets, and that is shown.
PHOTOGRAPH, PART = "astronaut.png", (slice(0, 270), slice(16, 496))
DETAIL = (slice(70, 170), slice(140, 260))
# attributes.jpg: the frame of the video, the part that is shown, and what looks at it.
FRAME, LANES = 223, (slice(0, 432), slice(20, 500))
VEHICLE = "vehicle-attributes-recognition-barrier-0039.onnx"
KINDS = ("car", "van", "truck", "bus", "white", "gray", "yellow", "red", "green", "blue", "black")
TRAFFIC = """[[stages]]
model = "yolov8n"
[[stages]]
model = "vehicle"
classes = ["car", "bus", "truck"]
"""
# stream.webp: the frames of the video that it shows, and what counts. Nothing moves between the
# two parts.
STREAM_PARTS, STREAM_STEP = (range(58, 100), range(182, 262)), 2
STREAM = (
    "--classes person --line entry=0.05,0.94,0.62,0.94 "
    "--zone table=0.45,0.66,0.7,0.66,0.74,0.92,0.41,0.92"
)
SERVER = "http://127.0.0.1:8137"
# drift.svg and shadow.jpg: the number of images, and the quantities that are shown.
LIVE, DRIFTED = 100, ("objects", "brightness")
RUNNING = "starting", "running"


def run(command: str, folder: Path) -> str:
    """Run a command as in a terminal, and return what it prints."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {"PATH": path, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1"}
    return subprocess.check_output(command.split(), cwd=folder, env=environment, text=True)


def terminal(command: str, printed: str) -> str:
    """Draw a command and what it printed as SVG, in a font that the reader has."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(f"$ {command}", style="bold", highlight=False)
        console.print(Text.from_ansi(printed.rstrip()))
    start, end = (CONSOLE_SVG_FORMAT.index(mark) for mark in ("    @font-face", "    .{unique_id}"))
    without = CONSOLE_SVG_FORMAT[:start] + CONSOLE_SVG_FORMAT[end:]
    return console.export_svg(title="", code_format=without)


def build(model: Path, images: Path) -> None:
    """Build the model in three precisions, and draw what the build prints."""
    command = f"fovea build {model.name} --precision auto --calibration images/"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, model.name).symlink_to(model.resolve())
        Path(folder, "images").symlink_to(images.resolve())
        (IMAGES / "build.svg").write_text(terminal(command, run(command, Path(folder))))


def tasks(models: Path, photographs: Path) -> None:
    """Draw what models of five tasks find, side by side."""
    panels: list[NDArray[np.uint8]] = []
    for name, photograph, part in TASKS:
        pixels = np.ascontiguousarray(read_image(photographs / photograph)[part])
        width = round(pixels.shape[1] * HEIGHT / pixels.shape[0])
        shown = cv2.resize(pixels, (width, HEIGHT), interpolation=cv2.INTER_AREA)
        with tempfile.TemporaryDirectory() as folder:
            plan = BuildPlan(
                models / f"{name}.onnx",
                "model",
                Path(folder),
                "onnxruntime",
                labels=find_labels("imagenet") if name == "mobilenetv2" else None,
            )
            build_engine(plan)
            with Engine.open(Path(folder) / "model" / "1") as engine:
                found = engine.predict(shown)
                panels += [draw(found, shown, engine.vocabulary())]
        panels += [np.full((HEIGHT, GAP, 3), 255, np.uint8)]
    whole = cv2.cvtColor(np.hstack(panels[:-1]), cv2.COLOR_RGB2BGR)
    cv2.imwrite(str(IMAGES / "tasks.jpg"), whole, [cv2.IMWRITE_JPEG_QUALITY, 82])


def page(url: str, photographs: Path) -> None:
    """Photograph the page that compares two models."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport={"width": 1300, "height": 890})
        tab.goto(url)
        tab.locator("select").nth(0).select_option("yolov8n-pose")
        tab.set_input_files("input[type=file]", photographs / "astronaut.png")
        tab.get_by_role("button", name="Compare").click()
        tab.locator("select").nth(1).select_option("yolov8n-seg-320")
        tab.get_by_text("Python", exact=True).click()
        tab.get_by_text("right only").first.wait_for()
        tab.wait_for_load_state("networkidle")
        tab.screenshot(path=IMAGES / "page.jpg", type="jpeg", quality=80)


def stream(model: Path, video: Path) -> None:
    """Track people in the beginning of a video, and animate some of its frames."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        build_engine(BuildPlan(model, "model", folder / "repository", "openvino"))
        rate = _write_beginning(video, folder / "clip.avi", STREAM_PARTS[-1].stop)
        run(f"fovea predict model clip.avi {STREAM} --out out --format annotated", folder)
        read = cv2.VideoCapture(str(folder / "out" / "annotated" / "clip.mp4"))
        drawn = [read.read()[1] for _ in range(STREAM_PARTS[-1].stop)]
    shown = [
        Image.fromarray(cv2.cvtColor(drawn[number], cv2.COLOR_BGR2RGB))
        for part in STREAM_PARTS
        for number in part[::STREAM_STEP]
    ]
    shown[0].save(
        IMAGES / "stream.webp",
        save_all=True,
        append_images=shown[1:],
        duration=round(1000 * STREAM_STEP / rate),
        loop=0,
        quality=60,
        method=6,
    )


def search() -> None:
    """Look for drawn images by words with the demo model, as `fovea index` and a search do."""
    from tools.demo_models.captions import PAIRS, compose

    images = [compose(seed, "heldout", PAIRS)[0] for seed in range(DRAWN)]
    with tempfile.TemporaryDirectory() as folder:
        plan = BuildPlan(DEMO / "digits-embed.onnx", "model", Path(folder), "onnxruntime")
        build_engine(replace(plan, tokenizer=DEMO / "digits-embed.json"))
        with Engine.open(Path(folder) / "model" / "1") as engine:
            found = [engine.predict(each) for each in images]
            vectors = np.stack([each.unit for each in found if isinstance(each, Embedding)])
            cosines = vectors @ engine.require_words().matrix(SEARCHES).T
    rows = []
    for text, scores in zip(SEARCHES, cosines.T, strict=True):
        best = np.argsort(-scores)[:SHOWN]
        titled = [_titled(images[at], f"{scores[at]:.2f}") for at in best]
        row = Image.new("RGB", (170, titled[0].shape[0]), "white")
        ImageDraw.Draw(row).text((4, SIDE // 2 - 12), text, "black", FONT)
        rows.append(np.hstack([np.asarray(row), *titled]))
    _save("search.jpg", np.vstack(rows), 72)


def _titled(pixels: NDArray[np.uint8], title: str) -> NDArray[np.uint8]:
    whole = Image.new("RGB", (SIDE + GAP, SIDE + 26), "white")
    whole.paste(Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.LANCZOS))
    ImageDraw.Draw(whole).text((SIDE // 2 - 14, SIDE + 2), title, "black", FONT)
    return np.asarray(whole)


def enlarged(models: Path, photographs: Path) -> None:
    """Draw a part of a photograph four times as large: by interpolation, and by a network."""
    model = models / "single-image-super-resolution-1032.onnx"
    pixels = np.ascontiguousarray(read_image(photographs / PHOTOGRAPH)[PART])
    with tempfile.TemporaryDirectory() as folder:
        build_engine(BuildPlan(model, "model", Path(folder), "openvino"))
        with Engine.open(Path(folder) / "model" / "1") as engine:
            found = engine.predict(pixels)
    assert isinstance(found, NewImage), "the network makes pictures"
    height, width = found.rgb.shape[:2]
    before = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC)
    factor = height // pixels.shape[0]
    part = tuple(slice(each.start * factor, each.stop * factor) for each in DETAIL)
    between = np.full((before[part].shape[0], GAP, 3), 255, np.uint8)
    _save("enlarged.jpg", np.hstack([before[part], between, found.rgb[part]]), 80)


def attributes(models: Path, video: Path) -> None:
    """Draw what `fovea predict` says of the cars on a frame: where they are, type and colour."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        repository = folder / "repository"
        build_engine(BuildPlan(models / "yolov8n.onnx", "yolov8n", repository, "openvino"))
        vehicle = BuildPlan(models / "chains" / VEHICLE, "vehicle", repository, "openvino")
        build_engine(replace(vehicle, labels=KINDS))
        (repository / "traffic").mkdir()
        (repository / "traffic" / "pipeline.toml").write_text(TRAFFIC)
        read = cv2.VideoCapture(str(video))
        read.set(cv2.CAP_PROP_POS_FRAMES, FRAME)
        cv2.imwrite(str(folder / "frame.png"), read.read()[1])
        run("fovea predict traffic frame.png --classes car --out out --format annotated", folder)
        drawn = read_image(folder / "out" / "annotated" / "frame.jpg")
    _save("attributes.jpg", drawn[LANES], 78)


def drift() -> None:
    """Send dark scenes to a model that was built with bright ones, and draw two quantities."""
    from tools.demo_models.night import LAYOUT, scene
    from tools.demo_models.scenes import compose

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "day").mkdir()
        for number in range(LIVE):
            Image.fromarray(compose(number, "heldout", LAYOUT).pixels).save(
                folder / "day" / f"{number}.png"
            )
        run(f"fovea build {DEMO / 'digits.onnx'} --images day", folder)
        images = cycle([scene(number, "heldout")[0] for number in range(LIVE)])
        with _served(folder), httpx.Client(base_url=SERVER) as http:
            while True:
                for png in islice(images, LIVE):
                    http.post("/v1/models/digits/predict", content=png).raise_for_status()
                text = http.get("/v1/models/digits/drift").raise_for_status().text
                report = DriftReport.model_validate_json(text)
                shown = [each for each in report.quantities if each.quantity in DRIFTED]
                # The server measures the brightness of a few images a second only.
                if all(each.distance is not None for each in shown):
                    break
    (IMAGES / "drift.svg").write_text(draw_drift(report.model_copy(update={"quantities": shown})))


def shadow(retrained: Path) -> None:
    """Shadow-test the retrained demo model on dark scenes, and take the worst image."""
    from tools.demo_models.night import scene

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for model in (DEMO / "digits.onnx", retrained):
            build_engine(BuildPlan(model, "digits", folder / "repository", "onnxruntime"))
        run("fovea promote digits 1", folder)
        images = cycle([scene(number, "heldout")[0] for number in range(LIVE)])
        with _served(folder), httpx.Client(base_url=SERVER, timeout=60) as http:
            http.put("/v1/models/digits/shadow", json={"version": 2, "share": 1, "images": LIVE})
            while (found := http.get("/v1/models/digits/shadow").json())["state"] in RUNNING:
                http.post("/v1/models/digits/predict", content=next(images)).raise_for_status()
            worst = found["report"]["worst"][0]["picture"]
            jpeg = http.get(f"/v1/models/digits/shadow/worst/{worst}").raise_for_status().content
    _save("shadow.jpg", decode_image(jpeg).pixels, 80)


def notebook(url: str) -> None:
    """Run the cells of the notebook, and keep their outputs."""
    import nbformat
    from nbclient import NotebookClient

    os.environ["FOVEA_URL"] = url
    document = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(document, record_timing=False, resources=folder).execute()
    nbformat.write(document, NOTEBOOK)


@contextmanager
def _served(folder: Path) -> Iterator[None]:
    """Serve the repository in a folder, once it is ready, at `SERVER`."""
    command = [sys.executable, "-m", "fovea_server.cli.main", "serve", "repository"]
    flags = (f"--http-port={httpx.URL(SERVER).port}", "--no-allow-grpc", "--no-allow-metrics")
    server = subprocess.Popen([*command, *flags], cwd=folder)
    try:
        while True:
            try:
                if httpx.get(f"{SERVER}/v2/health/ready").is_success:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        yield
    finally:
        server.terminate()
        server.wait()


def _save(name: str, pixels: NDArray[np.uint8], quality: int) -> None:
    picture = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    cv2.imwrite(str(IMAGES / name), picture, [cv2.IMWRITE_JPEG_QUALITY, quality])


def _write_beginning(video: Path, clip: Path, frames: int) -> float:
    """Write the first frames of a video, and return its frames a second."""
    read = cv2.VideoCapture(str(video))
    size = int(read.get(cv2.CAP_PROP_FRAME_WIDTH)), int(read.get(cv2.CAP_PROP_FRAME_HEIGHT))
    rate = float(read.get(cv2.CAP_PROP_FPS))
    writer = cv2.VideoWriter(str(clip), cv2.VideoWriter.fourcc(*"MJPG"), rate, size)
    for _ in range(frames):
        writer.write(read.read()[1])
    writer.release()
    return rate


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build", model, images]:
            build(Path(model), Path(images))
        case ["tasks", models, photographs]:
            tasks(Path(models), Path(photographs))
        case ["page", url, photographs]:
            page(url, Path(photographs))
        case ["stream", model, video]:
            stream(Path(model), Path(video))
        case ["search"]:
            search()
        case ["enlarged", models, photographs]:
            enlarged(Path(models), Path(photographs))
        case ["attributes", models, video]:
            attributes(Path(models), Path(video))
        case ["drift"]:
            drift()
        case ["notebook", url]:
            notebook(url)
        case ["shadow", retrained]:
            shadow(Path(retrained))
        case _:
            sys.exit(__doc__)
