"""What each task finds is drawn and listed: masks, skeletons, maps, crops, and images alike."""

import base64
import shutil

import cv2
import numpy as np
import pytest
from tests.built import build
from tests.e2e.results import AS_IT_IS, COLOUR, embedder
from tests.serving import start_server

from fovea_engines.build.plan import BuildPlan
from fovea_engines.results.colours import colour
from fovea_engines.results.mask_encoding import run_lengths
from fovea_engines.results.masks import Bitmap

from .conftest import DEMO, choose, listed, opened, says

pytestmark = pytest.mark.browser

WIDTH, HEIGHT = 100, 50
TIMES, DEGREES = "\N{MULTIPLICATION SIGN}", "\N{DEGREE SIGN}"
DRAWN = """
async ([answer, bones]) => {
    const [{ draw }, { decodeMap }, { itemsOf }] = await Promise.all(
        ['draw', 'masks', 'found'].map((name) => import(`/page/${name}.js`)));
    const canvas = document.createElement('canvas');
    const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
    Object.assign(svg.style, { position: 'fixed', width: '200px', height: '100px' });
    document.body.append(svg);
    await decodeMap(answer);
    draw({ canvas, svg }, answer, itemsOf(answer), { bones, alone: new Set() });
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const numbers = (shape) => [...shape.attributes].map(({ name, value }) => [name, value]);
    const shapes = [...svg.querySelectorAll('.outline, .bone, .joint, .bar')];
    const texts = [...svg.querySelectorAll('text')].map((each) => each.textContent);
    const found = shapes.map((each) => Object.fromEntries(numbers(each)));
    return { shapes: found, data: [...data], texts };
}
"""


@pytest.fixture(scope="module")
def draw(browser, page_server):
    """Draw an answer twice as large as its image; gives the shapes, the canvas as RGBA, and the
    texts.
    """
    with opened(browser, page_server) as page:

        def drawn(bones=(), **answer):
            given = [{"width": WIDTH, "height": HEIGHT, **answer}, list(bones)]
            found = page.evaluate(DRAWN, given)
            canvas = np.array(found["data"], np.uint8).reshape(HEIGHT, WIDTH, 4)
            return found["shapes"], canvas, found["texts"]

        yield drawn


def of_class(class_id: int, **fields) -> dict[str, object]:
    return {"class_id": class_id, "class_name": f"class {class_id}", "score": 0.9, **fields}


def painted(left, top, width, height) -> tuple[dict[str, object], np.ndarray]:
    """Run lengths of a rectangle, and its pixels."""
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[top : top + height, left : left + width] = True
    bitmap = Bitmap(left, top, np.ones((height, width), np.uint8))
    return dict(run_lengths(bitmap, (HEIGHT, WIDTH))), mask


def test_an_object_with_all_that_it_may_have(draw):
    box = {"x1": 10, "y1": 5, "x2": 40, "y2": 45}
    corners = [{"x": x, "y": y} for x, y in ((10, 5), (40, 5.5), (40, 45), (10, 44))]
    points = [
        {"name": "", "x": 10 * n, "y": n, "score": s} for n, s in ((1, 1), (2, 0.6), (3, 0.4))
    ]
    mask, inside = painted(12, 8, 20, 30)
    whole = of_class(3, box=box, corners=corners, keypoints=points, mask=mask)
    shapes, canvas, _ = draw([[0, 1], [1, 2]], detections=[whole])
    outline, *rest = shapes
    assert outline["points"] == "20,10 80,11 80,90 20,88"
    bones = [each for each in rest if each["class"] == "bone"]
    assert [[each[end] for end in ("x1", "y1", "x2", "y2")] for each in bones] == [
        ["20", "2", "40", "4"]
    ]
    assert [each["cx"] for each in rest if each["class"] == "joint"] == ["20", "40"]
    assert ((canvas[..., 3] == 255) == inside).all()
    assert (canvas[inside][:, :3] == colour(3)).all()


def test_classes_as_bars_and_as_areas(draw):
    scores = (0.9, 0.004)
    shapes, *_ = draw(classes=[of_class(1) | {"score": score} for score in scores])
    assert [each["class"] for each in shapes] == ["bar"]
    (first, inside), (other, _) = painted(0, 0, 60, 50), painted(60, 0, 40, 50)
    area = {"class_id": 4, "class_name": "sky", "share": 0.6, "mask": first}
    # Without names, the first class mostly is the background.
    for name in ("background", "0"):
        rest = {"class_id": 0, "class_name": name, "share": 0.4, "mask": other}
        _, canvas, texts = draw(semantic={"classes": [area, rest]})
        assert ((canvas[..., 3] == 255) == inside).all()
        assert (canvas[inside][:, :3] == colour(4)).all()
        assert texts == ["sky 60.0 %"]


def test_a_foreground_and_depths(draw):
    levels = np.tile(np.linspace(0, 255, WIDTH).astype(np.uint8), (HEIGHT, 1))
    _, canvas, _ = draw(saliency={"share": 0.5, "png": png(levels)})
    # What is not foreground is darkened.
    assert (canvas[..., :3] == 0).all()
    assert (np.abs(canvas[..., 3] - 0.75 * (255.0 - levels)) <= 1).all()
    deep = (levels.astype(np.uint16)) * 257
    for unit, near in ((None, -1), ("m", 0)):
        _, canvas, texts = draw(depth={"min": 0, "max": 9, "unit": unit, "png": png(deep)})
        assert (canvas[..., 3] == 255).all()
        assert canvas[0, near, :3].tolist() == [252, 255, 164]
        assert canvas[0, -1 - near, :3].tolist() == [0, 0, 4]
        # A hundredth at each end has the colour of the scale's end.
        assert texts == (["0.1 m", "8.9 m"] if unit else ["0.1", "8.9"])


def test_maps_have_a_legend_and_tell_the_class_under_the_pointer(page):
    """The demo model has ten names, so its class 12 would have none."""
    (left, _), (right, _) = painted(0, 0, 60, 50), painted(60, 0, 40, 50)
    areas = [
        {"class_id": 12, "class_name": "12", "pixels": 3000, "share": 0.6, "mask": left},
        {"class_id": 3, "class_name": "3", "pixels": 2000, "share": 0.4, "mask": right},
    ]
    image = {"width": WIDTH, "height": HEIGHT, "orientation": 1, "semantic": {"classes": areas}}
    stages = ("decode", "letterbox", "queue", "infer", "postprocess", "total")
    timing = dict.fromkeys(stages, 1.0)
    answer = {"model": "digits", "version": "2", "task": "semantic", "timing_ms": timing}
    page.route("**/predict?*", lambda route: route.fulfill(json=answer | {"images": [image]}))
    choose(page, DEMO / "scene-1.jpg")
    assert [row[0] for row in listed(page)] == ["class 12", "3"]
    assert page.locator(".view svg text").all_text_contents() == ["class 12 60.0 %", "3 40.0 %"]
    box = page.locator(".view canvas").bounding_box()
    for share, name in ((0.3, "class 12"), (0.8, "3")):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.5 * box["height"])
        assert page.inner_text(".probe") == name
    page.mouse.move(1, 1)
    assert not page.locator(".probe").is_visible()


PLACES = """
(found) => import('/page/sidebar.js').then(({ showFound }) => {
    const list = document.createElement('ol');
    const rows = found.map((left) => ({ left, right: null, mark: '' }));
    showFound(list, rows, null, () => {}, () => {});
    return [...list.querySelectorAll('small')].map((each) => each.textContent);
})
"""


def test_turned_boxes_are_listed_with_their_size_and_angle(page):
    box = {"x1": 10, "y1": 5, "x2": 40, "y2": 45}
    turned = {"cx": 25, "cy": 25.4, "w": 106.9, "h": 74.7, "angle": 1.31206}
    found = [of_class(3, box=box), of_class(3, box=box, rotated=turned)]
    assert page.evaluate(PLACES, found) == [
        *(f"10, 5  30 {TIMES} 40", f"25, 25  107 {TIMES} 75  75{DEGREES}")
    ]


def png(pixels: np.ndarray) -> str:
    return base64.b64encode(cv2.imencode(".png", pixels)[1].tobytes()).decode()


STAGES = """
[[stages]]
model = "digits"
[[stages]]
model = "classes"
"""
PIXELS = """
(canvas) => [canvas.width, canvas.height,
             ...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]
"""


@pytest.fixture(scope="module")
def server(demo_repository, tmp_path_factory):
    """A server of a pipeline, and of a model that makes vectors of images."""
    folder = tmp_path_factory.mktemp("tasks")
    repository = shutil.copytree(demo_repository, folder / "repository")
    build(BuildPlan(DEMO / "digits-classify.onnx", "classes", repository, "onnxruntime"))
    (repository / "seen").mkdir()
    (repository / "seen" / "pipeline.toml").write_text(STAGES)
    source = embedder(folder / "embedding.onnx")
    build(BuildPlan(source, "alike", repository, "onnxruntime", preprocess=AS_IT_IS))
    running = start_server(repository, folder)
    running.repository = repository
    yield running
    assert running.stop() == 0


def test_each_object_has_its_crop_and_what_was_found_on_it(browser, server):
    with opened(browser, server, ready="FP32") as page:
        choose(page, DEMO / "scene-1.jpg")
        page.locator("select").first.select_option("seen")
        first = page.locator("#found .row").first
        first.locator("canvas.crop").wait_for()
        rows = page.locator("#found .row")
        assert rows.locator("canvas.crop").count() == rows.count() > 2
        width, height, *values = first.locator("canvas.crop").evaluate(PIXELS)
        assert (width > 20) & (height == 40)
        # A digit and its ground, not a plain area.
        assert np.array(values).reshape(height, width, 4)[..., :3].std() > 10
        assert page.locator(".legend .later").inner_text().startswith("classes")
        page.locator("select").first.select_option("classes")
        page.locator(".view svg .bar").first.wait_for()
        assert page.locator("#found canvas").count() == 0


COLOURS = {"near.png": (195, 105, 55), "far.png": (10, 20, 240), "<b>odd</b>.png": (90, 190, 90)}


def write(path, shade):
    path.write_bytes(cv2.imencode(".png", np.full((30, 20, 3), shade[::-1], np.uint8))[1])


def test_images_like_the_one_that_is_shown(browser, server, tmp_path, fovea):
    repository = server.repository
    (tmp_path / "images").mkdir()
    for name, shade in COLOURS.items():
        write(tmp_path / "images" / name.replace("/", "_"), shade)
    write(tmp_path / "who.png", COLOUR)
    write(tmp_path / "other.png", COLOURS["far.png"])
    with opened(browser, server, ready="FP32") as page:
        page.locator("select").first.select_option("alike")
        choose(page, tmp_path / "who.png")
        says(page, "#similar", "no index 'index': build it with `fovea index alike IMAGES`")
        code, _, err = fovea("index", "alike", "images", "--repository", repository)
        assert code == 0, err
        # Another image asks again.
        choose(page, tmp_path / "who.png")
        says(page, "#similar", "Most similar of 3 images:")
        rows = page.locator("#similar li")
        names = rows.locator(".name").all_inner_texts()
        assert (names[0], set(names)) == ("near.png", {"near.png", "far.png", "<b>odd<_b>.png"})
        scores = [float(text) for text in rows.locator("b").all_inner_texts()]
        assert scores == sorted(scores, reverse=True)
        assert 0.99 < scores[0] <= 1
        assert rows.locator("img").count() == 0
        words = ("images", "--repository", repository, "--thumbnails")
        assert fovea("index", "alike", *words)[0] == 0
        choose(page, tmp_path / "other.png")
        first = page.locator("#similar li").filter(has_text="far.png").first
        decoded = "(each) => each.decode().then(() => each.naturalWidth)"
        assert first.locator("img").evaluate(decoded) == 20
        assert page.locator("#similar img").count() == 3
        page.locator("#clear").click()
        page.locator("#similar").wait_for(state="hidden")
