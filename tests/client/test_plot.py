"""Answers of a server of all demo models, drawn by the client: the pixels that change, and how."""

import io
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tests.built import build
from tests.conftest import DEMO, ROOT
from tests.docs.pages import blocks, ported
from tests.e2e.results import AS_IT_IS, COLOUR, MODELS
from tests.serving import start_server

from fovea_client import Client, ImageError, Outlines
from fovea_engines.build.plan import BuildPlan
from fovea_engines.results.colours import colour, ink, shades

pytestmark = pytest.mark.slow

SCENES = ("scene-1.jpg", "scene-2.jpg")
# How far labels, lines and keypoints reach from a box, pixels across and down.
REACH = (70, 30)
TINT = 115 / 255


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plot")
    repository = folder / "repository"
    for name in ("segment", "pose", "obb", "classify"):
        build(BuildPlan(DEMO / f"digits-{name}.onnx", name, repository, "onnxruntime"))
    build(BuildPlan(DEMO / "digits.onnx", "detect", repository, "onnxruntime"))
    build(BuildPlan(DEMO / "digits.onnx", "raw", repository, "onnxruntime", family="tensors"))
    build(BuildPlan(DEMO / "plates-read.onnx", "read", repository, "onnxruntime"))
    words = {"tokenizer": DEMO / "digits-embed.json"}
    build(BuildPlan(DEMO / "digits-embed.onnx", "embed", repository, "onnxruntime", **words))
    for name in ("attributes", "picture"):
        source = MODELS[name].write(folder / f"{name}.onnx")
        plan = {"preprocess": AS_IT_IS} | MODELS[name].given
        build(BuildPlan(source, name, repository, "onnxruntime", **plan))
    running = start_server(repository, folder)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    with Client(server.url) as asking:
        yield asking


def pixels(image):
    """The pixels of an image, or of a file of one: int [height, width, 3]."""
    if not isinstance(image, Image.Image):
        with Image.open(image) as file:
            image = file.convert("RGB")
    return np.asarray(image.convert("RGB")).astype(int)


def letters_on(fill, drawn):
    """Where pixels are nearer to the ink of a colour than to it, bool [...]."""
    return np.abs(drawn - ink(fill)).sum(-1) < np.abs(drawn - np.array(fill)).sum(-1)


def png(image, **options):
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


@pytest.fixture(params=SCENES)
def scene(request):
    return DEMO / request.param


def around(result, across, down):
    """The pixels of boxes that are larger by so much on each side, bool [height, width]."""
    near = np.zeros((result.height, result.width), bool)
    for x1, y1, x2, y2 in result.boxes:
        rows = slice(max(0, round(float(y1 - down))), round(float(y2 + down)) + 1)
        near[rows, max(0, round(float(x1 - across))) : round(float(x2 + across)) + 1] = True
    return near


def frame_of(box, size):
    """The rows and columns of the pixels on the edge of a box."""
    x1, y1, x2, y2 = np.clip(np.rint(box).astype(int), 0, [size[0] - 1, size[1] - 1] * 2)
    across, down = np.arange(x1, x2 + 1), np.arange(y1, y2 + 1)
    rows = [np.full_like(across, y1), np.full_like(across, y2), down, down]
    columns = [across, across, np.full_like(down, x1), np.full_like(down, x2)]
    return np.concatenate(rows), np.concatenate(columns)


@pytest.mark.parametrize("task", ["detect", "segment", "pose"])
def test_boxes_have_frames_in_their_colours_and_nothing_else_changes(client, scene, task):
    result = client.predict(task, scene).image
    before, drawn = pixels(scene), pixels(result.plot())
    ids = result.class_ids.tolist()
    assert len(ids) > 3
    given = shades(ids, result.boxes.tolist()) if task == "segment" else [0] * len(ids)
    for box, class_id, shade in zip(result.boxes, ids, given, strict=True):
        frame = drawn[frame_of(box, (result.width, result.height))]
        assert (frame == colour(class_id, shade)).all(1).mean() > 0.7
    changed = (before != drawn).any(2)
    far = ~around(result, *REACH)
    assert far.mean() > 0.2
    assert not changed[far].any()
    if task == "detect":  # inside of a frame are labels of others, at most
        assert changed[around(result, -4, -4)].mean() < 0.1


def test_a_mask_tints_its_pixels_alone(client, scene):
    result = client.predict("segment", scene).image
    before, drawn = pixels(scene), pixels(result.plot())
    ids = result.class_ids.tolist()
    edges = around(result, 4, 4) ^ around(result, -4, -4)
    for mask, found, shade in zip(
        result.masks, result.detections, shades(ids, result.boxes.tolist()), strict=True
    ):
        tinted = before + (np.array(colour(found.class_id, shade)) - before) * TINT
        inside = mask & ~edges
        assert (np.abs(drawn - tinted).max(2) <= 1)[inside].mean() > 0.7  # labels cover some
    outside = around(result, -4, -4) & ~result.masks.any(0)
    assert (drawn == before).all(2)[outside].mean() > 0.8


def test_masks_of_every_form_are_drawn_alike(client, scene):
    drawn = {
        form: pixels(client.predict("segment", scene, mask=form).plot())
        for form in ("rle", "png", "polygon")
    }
    assert isinstance(client.predict("segment", scene, mask="polygon").detections[0].mask, Outlines)
    assert (drawn["rle"] == drawn["png"]).all()
    assert (drawn["rle"] != drawn["polygon"]).any(2).mean() < 0.005


def test_rotated_boxes_are_drawn_by_their_corners(client, scene):
    result = client.predict("obb", scene).image
    drawn = pixels(result.plot())
    on_sides = []
    for found in result.detections:
        corners = np.array([(corner.x, corner.y) for corner in found.corners])
        for one, other in zip(corners, np.roll(corners, 1, axis=0), strict=True):
            for share in (0.3, 0.5, 0.7):
                x, y = np.rint(one + (other - one) * share).astype(int)
                if 0 <= x < result.width and 0 <= y < result.height:
                    part = drawn[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].reshape(-1, 3)
                    on_sides.append((part == colour(found.class_id)).all(1).any())
    assert np.mean(on_sides) > 0.8  # labels cover some
    turned = max(result.detections, key=lambda each: abs(np.sin(2 * each.rotated.angle)))
    turned_box = result.boxes[result.detections.index(turned)]
    frame = drawn[frame_of(turned_box, (result.width, result.height))]
    assert (frame == colour(turned.class_id)).all(1).mean() < 0.3


def test_keypoints_are_white_in_a_ring(client, scene):
    result = client.predict("pose", scene).image
    drawn, right = pixels(result.plot()), []
    for found in result.detections:
        for point in found.keypoints:
            x, y = round(point.x), round(point.y)
            if point.score >= 0.5 and 5 <= x < result.width - 5 and 5 <= y < result.height - 5:
                part = drawn[y - 5 : y + 6, x - 5 : x + 6].reshape(-1, 3)
                ring = (part == colour(found.class_id)).all(1).sum() > 10
                right.append(ring and (drawn[y, x] == 255).all())
    assert len(right) > 10
    assert np.mean(right) > 0.8  # labels cover some


@pytest.mark.real
def test_bones_and_maps_of_real_models(shared, tmp_path):
    models, photo = shared / "models", shared / "data" / "bus.jpg"
    sources = {
        "person": "yolov8n-pose",
        "stands-out": "u2netp",
        "classes": "heads/hf-segformer",
        "depth": "heads/yolo26-depth",
    }
    for name, source in sources.items():
        (tmp_path / "repository" / name / "1").mkdir(parents=True)
        link = tmp_path / "repository" / name / "1" / "model.onnx"
        link.symlink_to(models / f"{source}.onnx")
    running = start_server(tmp_path / "repository", tmp_path)
    with Client(running.url) as client:
        answers = {name: client.predict(name, photo).image for name in sources}
        as_file = client.predict("classes", photo, mask="png")
    assert running.stop() == 0
    before = pixels(photo)
    check_bones(answers["person"])
    check_classes(answers["classes"], before)
    assert (pixels(as_file.plot()) == pixels(answers["classes"].plot())).all()
    foreground = answers["stands-out"]
    drawn, alpha = pixels(foreground.plot())[40:], foreground.saliency.alpha[40:]
    assert (drawn == before[40:])[alpha == 255].all()
    assert (np.abs(drawn - before[40:] / 4) <= 1)[alpha == 0].all()
    # Near pixels are bright.
    light, depths = pixels(answers["depth"].plot())[40:].sum(2), answers["depth"].depth.values[40:]
    order = np.argsort(depths, axis=None)
    least = len(order) // 10
    assert light.flat[order[:least]].mean() > light.flat[order[-least:]].mean() + 100


def check_bones(result):
    drawn, right = pixels(result.plot()), []
    for found in result.detections:
        at = {point.name: point for point in found.keypoints}
        for one, other in (("left hip", "left knee"), ("right hip", "right knee")):
            if min(at[one].score, at[other].score) >= 0.5:
                x, y = (at[one].x + at[other].x) / 2, (at[one].y + at[other].y) / 2
                right.append((drawn[round(y), round(x)] == colour(found.class_id)).all())
    assert len(right) >= 4
    assert all(right)


def check_classes(result, before):
    drawn = pixels(result.plot())
    beside_list = np.zeros(drawn.shape[:2], bool)
    beside_list[:, result.width // 2 :] = True
    for area in result.semantic.classes:
        tinted = before + (np.array(colour(area.class_id)) - before) * 140 / 255
        wanted = before if area.class_name in ("0", "background") else tinted
        assert (np.abs(drawn - wanted) <= 1)[area.mask.pixels & beside_list].all()


def test_tracked_objects_have_their_ids_in_the_label(client):
    for _ in range(3):
        result = client.predict(
            "detect", DEMO / SCENES[0], track="bytetrack", stream_id="s", min_frames=1
        ).image
    assert all(each.track_id for each in result.detections)
    nameless = replace(
        result, detections=tuple(replace(each, track_id=None) for each in result.detections)
    )
    with_ids, without = pixels(result.plot()), pixels(nameless.plot(DEMO / SCENES[0]))
    filled = [
        sum((drawn == colour(class_id)).all(2).sum() for class_id in set(result.class_ids.tolist()))
        for drawn in (with_ids, without)
    ]
    assert filled[0] > filled[1]


@pytest.mark.parametrize(
    ("name", "image"), [("classify", "digit.jpg"), ("read", "plate.jpg"), ("attributes", None)]
)
def test_what_is_of_the_whole_image_is_listed_in_its_corner(client, name, image):
    sent = png(Image.new("RGB", (200, 90), COLOUR)) if image is None else DEMO / image
    result = client.predict(name, sent).image
    before = pixels(io.BytesIO(sent) if image is None else sent)
    drawn = pixels(result.plot())
    changed = (before != drawn).any(2)
    assert changed.any()
    assert not changed[:, result.width * 3 // 4 :].any()
    assert not changed[result.height * 3 // 4 :].any()
    best = (*result.classes, *(c for one in result.attributes for c in one.likely))
    fill = colour(best[0].class_id if best else 0)
    assert tuple(drawn[0, 0]) == fill
    assert letters_on(fill, drawn[1:12, 1:30]).sum() > 10


@pytest.mark.parametrize("side", [48, 64, 96])
def test_class_and_score_are_readable_on_a_small_image(client, side):
    with Image.open(DEMO / "digit.jpg") as whole:
        small = whole.resize((side, side))
    answer = client.predict("classify", small)
    drawn, fill = pixels(answer.plot()), colour(answer.classes[0].class_id)
    # The end of the first line lies inside the image, and its letters are six pixels high at least.
    [wide] = np.flatnonzero((drawn[0] != fill).any(1))[:1]
    assert wide < side
    rows = np.flatnonzero(letters_on(fill, drawn[1:12, 1 : wide - 1]).any(1))
    assert rows[-1] - rows[0] >= 5


def test_a_picture_that_was_made_is_shown_itself(client):
    result = client.predict("picture", png(Image.new("RGB", (40, 30), COLOUR))).image
    assert (pixels(result.plot()) == result.picture.pixels).all()


@pytest.mark.parametrize("name", ["embed", "raw"])
def test_vectors_and_tensors_cannot_be_drawn(client, name):
    image = "seven.jpg" if name == "embed" else SCENES[0]
    with pytest.raises(ValueError, match="cannot be drawn"):
        client.predict(name, DEMO / image).plot()


def test_the_image_is_found_again_in_every_form_that_was_sent(client, scene):
    upright = Image.open(scene).convert("RGB")
    rgb = np.asarray(upright)
    wanted = pixels(client.predict("detect", png(upright)).plot())
    for image, channels in ((rgb, "RGB"), (rgb[..., ::-1], "BGR"), (upright, "RGB")):
        answer = client.predict("detect", image, channels=channels)
        assert (pixels(answer.plot()) == wanted).all()
        copy = pickle.loads(pickle.dumps(answer))
        assert (pixels(copy.plot(image, channels)) == wanted).all()
    read = client.predict("detect", io.BytesIO(png(upright)))
    assert (pixels(read.plot(upright)) == wanted).all()


def test_a_result_without_its_image_asks_for_it(client, tmp_path):
    path = tmp_path / "scene.png"
    path.write_bytes((DEMO / SCENES[0]).read_bytes())
    sent = path.read_bytes()
    [of_path, of_bytes] = [next(client.predict_many("detect", [one])) for one in (path, sent)]
    with pytest.raises(ValueError, match="plot"):
        of_bytes.plot()
    assert (pixels(of_path.plot()) == pixels(of_bytes.plot(sent))).all()
    with pytest.raises(ValueError, match="640x480"):
        of_path.plot(DEMO / "digit.jpg")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        of_path.plot()
    # Of a large array only a small copy is kept.
    large = np.asarray(Image.open(DEMO / SCENES[0]).resize((1280, 960)))
    answer = client.predict("detect", large)
    with pytest.raises(ValueError, match="1280x960"):
        answer.save(tmp_path / "large.png")
    answer.save(tmp_path / "large.png", large)
    assert pixels(tmp_path / "large.png").shape == (960, 1280, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_drawn_upright(client, orientation):
    upright = Image.open(DEMO / SCENES[0])
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(turns[orientation]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    answer = client.predict("detect", png(stored, exif=exif))
    assert answer.image.orientation == orientation
    wanted = client.predict("detect", png(upright))
    assert (pixels(answer.plot()) == pixels(wanted.plot())).all()


def test_grey_images_of_16_bits_keep_their_levels(client):
    levels = np.asarray(Image.open(DEMO / SCENES[0]).convert("L"))
    deep = client.predict("detect", png(Image.fromarray(levels.astype(np.uint16) * 257)))
    flat = client.predict("detect", png(Image.fromarray(levels)))
    assert (pixels(deep.plot()) == pixels(flat.plot())).all()


def test_of_several_images_each_is_drawn(client, tmp_path):
    answer = client.predict("detect", [DEMO / SCENES[0], b"no image", DEMO / SCENES[1]])
    first, bad, last = answer.images
    assert isinstance(bad, ImageError)
    for result, name in ((first, SCENES[0]), (last, SCENES[1])):
        result.save(tmp_path / "each.png")
        alone = client.predict("detect", DEMO / name)
        assert (pixels(tmp_path / "each.png") == pixels(alone.plot())).all()
    with pytest.raises(ValueError, match="images"):
        answer.plot()


def test_files_have_the_format_of_their_suffix(client, tmp_path):
    answer = client.predict("detect", DEMO / SCENES[0])
    for suffix, kind in ((".jpg", "JPEG"), (".png", "PNG"), (".webp", "WEBP")):
        answer.save(tmp_path / f"found{suffix}")
        with Image.open(tmp_path / f"found{suffix}") as image:
            assert (image.format, image.size) == (kind, (640, 480))
    with pytest.raises(ValueError, match="unknown"):
        answer.save(tmp_path / "found.unknown")


def test_without_pillow_the_error_names_the_command(client, monkeypatch):
    answer = client.predict("detect", DEMO / SCENES[0])
    monkeypatch.delitem(sys.modules, "fovea_client._plot", raising=False)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        answer.plot()


def test_the_block_of_the_clients_readme(server, tmp_path, monkeypatch):
    """It is of models and images that a reader has, for which these stand in."""
    [block] = [
        block
        for kind, block in blocks((ROOT / "client" / "README.md").read_text())
        if kind == "python" and ".plot()" in block
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bus.jpg").write_bytes((DEMO / SCENES[0]).read_bytes())
    exec(ported(block.replace('"yolov8n"', '"detect"'), {8000: server.port}), {})
    assert pixels(tmp_path / "found.jpg").shape == (480, 640, 3)
