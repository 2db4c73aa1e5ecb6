"""Masks, skeletons, rotated boxes and maps are drawn where an answer has them."""

import base64

import cv2
import numpy as np
import pytest

from fovea_engines.detect.draw.colours import colour
from fovea_engines.detect.mask_encoding import run_lengths
from fovea_engines.detect.masks import Bitmap

WIDTH, HEIGHT = 100, 50
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
    return { shapes: shapes.map((each) => Object.fromEntries(numbers(each))), data: [...data] };
}
"""


@pytest.fixture
def draw(page):
    """Draw an answer twice as large as its image; gives the shapes, and the canvas as RGBA."""

    def drawn(bones=(), **answer):
        found = page.evaluate(DRAWN, [{"width": WIDTH, "height": HEIGHT, **answer}, list(bones)])
        return found["shapes"], np.array(found["data"], np.uint8).reshape(HEIGHT, WIDTH, 4)

    return drawn


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
    shapes, canvas = draw([[0, 1], [1, 2]], detections=[whole])
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
    shapes, _ = draw(classes=[of_class(1), of_class(2)])
    assert [each["class"] for each in shapes] == ["bar", "bar"]
    (first, inside), (other, _) = painted(0, 0, 60, 50), painted(60, 0, 40, 50)
    area = {"class_id": 4, "class_name": "sky", "share": 0.6, "mask": first}
    rest = {"class_id": 0, "class_name": "background", "share": 0.4, "mask": other}
    _, canvas = draw(semantic={"classes": [area, rest]})
    assert ((canvas[..., 3] == 255) == inside).all()
    assert (canvas[inside][:, :3] == colour(4)).all()


def test_a_foreground_and_depths(draw):
    levels = np.tile(np.linspace(0, 255, WIDTH).astype(np.uint8), (HEIGHT, 1))
    _, canvas = draw(saliency={"share": 0.5, "png": png(levels)})
    # What is not foreground is darkened.
    assert (canvas[..., :3] == 0).all()
    assert (np.abs(canvas[..., 3] - 0.75 * (255.0 - levels)) <= 1).all()
    deep = (levels.astype(np.uint16)) * 257
    for unit, near in ((None, -1), ("m", 0)):
        _, canvas = draw(depth={"min": 0, "max": 9, "unit": unit, "png": png(deep)})
        assert (canvas[..., 3] == 255).all()
        assert canvas[0, near, :3].tolist() == [252, 255, 164]
        assert canvas[0, -1 - near, :3].tolist() == [0, 0, 4]


def png(pixels: np.ndarray) -> str:
    return base64.b64encode(cv2.imencode(".png", pixels)[1].tobytes()).decode()
