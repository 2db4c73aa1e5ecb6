"""Measures how soon the page shows the first boxes after an image is dropped on it.

    python benchmarks/page.py [MODEL.onnx] [--image FILE] [--rounds 20]

Without arguments: the demo model and one of its scenes. Chromium drops the image on the page of a
server on this machine, a fresh copy in each round, and the time runs until boxes have been painted.
The model's own time, which the server reports, is printed beside it and taken off.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from serve import MODEL, start_server

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan

DEMO = Path(__file__).parents[1] / "server" / "fovea_server" / "demo"

# From the drop to the frame after the one in which a new box is in the document.
DROP = """
async ([name, data]) => {
    const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([bytes], name, { type: 'image/jpeg' }));
    const former = document.querySelector('.outline');
    const frame = () => new Promise(requestAnimationFrame);
    const began = performance.now();
    document.body.dispatchEvent(new DragEvent('drop', { bubbles: true, dataTransfer }));
    do await frame(); while ([null, former].includes(document.querySelector('.outline')));
    await frame();
    const took = performance.now() - began;
    const infer = /infer ([\\d.]+) ms/.exec(document.querySelector('.stages').ariaLabel);
    return [took, Number(infer?.[1] ?? 0)];
}
"""


def measure(url: str, image: Path, rounds: int) -> list[tuple[float, float]]:
    """Drop an image so many times; milliseconds to its boxes, and of them in the engine."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.goto(url)
        page.locator(".facts").filter(has_text="\N{MIDDLE DOT}").wait_for()
        data = base64.b64encode(image.read_bytes()).decode()
        found = [page.evaluate(DROP, [image.name, data]) for _ in range(rounds)]
        browser.close()
    return [(took, infer) for took, infer in found]


def main() -> None:
    """Build, serve, drop and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, default=DEMO / "digits.onnx")
    parser.add_argument("--image", type=Path, default=DEMO / "scene-1.jpg")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build(BuildPlan(arguments.model, MODEL, Path(folder), "onnxruntime"))
        server, port, _ = start_server(Path(folder), arguments.image.read_bytes())
        try:
            found = measure(f"http://127.0.0.1:{port}", arguments.image, arguments.rounds)
        finally:
            server.terminate()
            server.wait()
    without = [took - infer for took, infer in found]
    print(f"{arguments.model.stem}, {arguments.rounds} drops of {arguments.image.name}, ms")
    for title, values in (
        ("drop to boxes", [took for took, _ in found]),
        ("without inference", without),
    ):
        print(f"  {title:18} median {statistics.median(values):.0f}, most {max(values):.0f}")
    print(f"  the first drop     {found[0][0]:.0f}, without inference {without[0]:.0f}")


if __name__ == "__main__":
    main()
