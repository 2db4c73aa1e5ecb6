"""The head of a build: recognised by sample images, asked for, named, forced, or in a file."""

import json
import shutil
from dataclasses import replace

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from tests.built import build as build_once
from tests.engines import reference
from tests.engines.heads.test_contradictions import Surgeon
from tests.engines.noting import Noting
from tests.engines.plates import BOXES, LARGE_PRIORS, PLACES, PRIORS, retinaface_plate, scene
from tests.engines.tiny import tiny_detector
from tests.odd import HEAD, odd_model

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.head_file import load_head
from fovea_engines.heads.presets import read_preprocess
from fovea_engines.progress import Progress
from fovea_engines.repository.card import NOTHING_SEEN
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = pytest.mark.slow


# Columns of a pose model, with y before x in each keypoint.
CROSSED = [*range(5), *(5 + 3 * point + at for point in range(17) for at in (1, 0, 2))]


@pytest.fixture
def grey(tmp_path):
    """A folder of one image that shows nothing."""
    folder = tmp_path / "grey"
    folder.mkdir()
    cv2.imwrite(str(folder / "grey.png"), np.full((64, 64, 3), 128, np.uint8))
    return folder


def plan(source, tmp_path, **options):
    return BuildPlan(source, "m", tmp_path / "models", "onnxruntime", **options)


def saved(surgeon, path):
    onnx.save(surgeon.finished(), path)
    return path


def clothes(shared, **options):
    path = shared / "models" / "heads" / "ultralytics-rtdetr-clothes.onnx"
    return Surgeon(path, metadata=False, **options)


@pytest.mark.real
def test_images_that_show_nothing_are_followed_by_the_photographs(shared, tmp_path, grey):
    """The rows are fractions, as the photographs show: on the grey image there is no row."""
    source = saved(clothes(shared)("Identity"), tmp_path / "m.onnx")
    assert build(plan(source, tmp_path, images=grey)).family == "ultralytics-rtdetr"
    # Nor do they tell that a preprocessing is wrong.
    source = shared / "models" / "yolov10n.onnx"
    given = read_preprocess("imagenet")
    assert build(plan(source, tmp_path, preprocess=given, images=grey)).family == "yolov10"


@pytest.mark.real
def test_a_build_asks_where_no_image_shows_anything(shared, tmp_path, grey):
    """And a plain folder serves tensors."""
    source = saved(clothes(shared)("Mul", np.float32(0)), tmp_path / "m.onnx")
    with pytest.raises(InvalidOption, match="yolov10"):
        build(plan(source, tmp_path, images=grey))
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    source.rename(folder / "model.onnx")
    with Engine.open(folder) as engine:
        assert engine.head is None
        assert "`fovea build --head FAMILY`" in engine.card.reason
        assert "yolov10" in [one.family for one in engine.card.head_candidates]


@pytest.mark.parametrize("size", [None, (64, 64)])
def test_a_dynamic_size_is_noted_unless_one_is_given(tmp_path, size):
    progress = Noting()
    model = tiny_detector(tmp_path / "tiny.onnx", size=("h", "w"))
    prepare(plan(model, tmp_path, size=size), progress)
    assert any("--size HxW" in note for note in progress.notes) == (size is None)


@pytest.mark.real
def test_a_size_that_cannot_be_computed_is_followed_by_one_that_can(shared, tmp_path):
    source = shared / "models" / "heads" / "yolo5face-500m.onnx"
    with pytest.raises(UnsupportedModel, match="--size 320x320"):
        build(plan(source, tmp_path))
    assert build(plan(source, tmp_path, size=(320, 320))).family == "yolov5-face"


@pytest.mark.real
def test_class_ids_beyond_the_labels_are_refused(shared, tmp_path):
    source = shared / "models" / "heads" / "efficientnms.onnx"
    with pytest.raises(InvalidOption, match="--labels"):
        build(plan(source, tmp_path, labels=("shirt",)))


@pytest.mark.real
@pytest.mark.parametrize(
    ("file", "columns", "axis", "says"),
    [
        ("yolov10n", [1, 0, 3, 2, 4, 5], 2, "x and y"),
        ("yolov8n", [0, 1, 3, 2, *range(4, 84)], 1, "or width and height"),
        ("yolov8n-pose", CROSSED, 1, "100% if x and y are swapped"),
    ],
)
def test_numbers_that_are_swapped_show_in_the_images(shared, tmp_path, file, columns, axis, says):
    model = Surgeon(shared / "models" / f"{file}.onnx").take(columns, axis)
    source = saved(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedModel, match=rf"(in the padding|of the keypoints) .*{says}"):
        prepare(plan(source, tmp_path), Progress())
    prepare(plan(shared / "models" / f"{file}.onnx", tmp_path), Progress())


@pytest.mark.real
def test_a_model_without_class_names_is_told_what_they_must_be(shared, tmp_path):
    progress = Noting()
    prepare(plan(shared / "models" / "heads" / "rfdetr.onnx", tmp_path), progress)
    assert any("--labels coco91" in note for note in progress.notes)


@pytest.fixture
def hands(shared):
    """YOLOX of signs of hands."""
    source = shared / "models" / "more" / "yolox-handsigns.onnx"
    if not source.is_file():
        pytest.skip(f"{source} is not there")
    return source


@pytest.mark.real
def test_a_named_head_wins_over_images_of_another_domain(shared, hands, tmp_path):
    """In photographs without hands its classes are unsure, as those without objectness are."""
    progress = Noting()
    card = build(plan(hands, tmp_path, family="yolox"), progress)
    assert card.family == "yolox"
    assert "too low for a model with objectness" in card.head_doubt
    [said] = [note for note in progress.notes if "--head yolox is uncertain" in note]
    assert "--images" in said
    pixels = read_image(shared / "data" / "bus.jpg")
    session = onnxruntime.InferenceSession(hands)
    wanted = reference.detect(session, "yolox", pixels[..., ::-1], conf=0.01, iou=1.0)
    with Engine.open(tmp_path / "models" / "m" / "1") as engine:
        found = engine.detect(pixels, PredictOptions(conf=0.01, iou=1.0, max_det=1000))
    assert len(found) == len(wanted) > 3
    np.testing.assert_allclose(found.scores, [one["score"] for one in wanted], atol=2e-4)
    assert found.class_ids.tolist() == [one["class_id"] for one in wanted]
    np.testing.assert_allclose(found.boxes, [one["box"] for one in wanted], atol=0.5)
    # On a street its classes are surer than on a cat and a cup.
    folder = tmp_path / "images"
    folder.mkdir()
    shutil.copy(shared / "data" / "bus.jpg", folder)
    assert build(plan(hands, tmp_path, family="yolox", images=folder)).head_doubt is None
    # What nobody names is not guessed in doubt.
    card = build(plan(hands, tmp_path))
    assert card.family is None
    assert "choose --head yolox" in card.reason


@pytest.mark.real
def test_a_head_against_the_numbers_is_refused_or_forced(shared, tmp_path):
    source = shared / "models" / "yolox_nano.onnx"
    with pytest.raises(UnsupportedModel, match="--force-head"):
        build(plan(source, tmp_path, family="yolox-decoded"))
    progress = Noting()
    card = build(plan(source, tmp_path, family="yolox-decoded", force_head=True), progress)
    assert card.family == "yolox-decoded"
    assert "forced by --force-head" in card.reason
    assert "not sizes in pixels" in card.head_doubt
    assert any("not sizes in pixels" in note for note in progress.notes)


@pytest.mark.real
def test_a_head_against_the_metadata_is_forced_where_it_can_be_decoded(shared, tmp_path):
    """`libreyolo-yolo9` reads its columns as corners, whatever Ultralytics' metadata says."""
    source = shared / "models" / "yolov8n.onnx"
    with pytest.raises(UnsupportedModel, match="--force-head"):
        build(plan(source, tmp_path, family="libreyolo-yolo9"))
    card = build(plan(source, tmp_path, family="libreyolo-yolo9", force_head=True))
    assert card.family == "libreyolo-yolo9"
    assert card.head_doubt
    with pytest.raises(UnsupportedModel) as refused:
        build(plan(source, tmp_path, family="yolox", force_head=True))
    assert "--force-head" not in str(refused.value)


@pytest.mark.real
def test_the_command_shows_what_was_forced(shared, tmp_path, fovea):
    source, models = shared / "models" / "yolox_nano.onnx", tmp_path / "models"
    options = ["--repository", models, "--backend", "onnxruntime"]
    code, out, err = fovea(
        "build", source, "--head", "yolox-decoded", "--force-head", *options, "--name", "m"
    )
    assert code == 0, err
    assert "DOUBTED" in out
    shown = json.loads(fovea("inspect", "m", "--repository", models, "--json")[1])
    assert "not sizes in pixels" in shown[0]["card"]["head_doubt"]
    code, _, err = fovea("build", source, "--force-head", *options)
    assert (code, "--head" in err) == (2, True)


OWN = HEAD.replace('    labels = tuple("0123456789")\n', "")


@pytest.fixture
def planned(shared, tmp_path):
    """Make the plan of a build with the head of this text."""
    source = odd_model(shared / "models" / "yolov8n.onnx", tmp_path / "odd.onnx")

    def plan(text: str, **options) -> BuildPlan:
        (tmp_path / "mine.py").write_text(text)
        family = load_head(tmp_path / "mine.py").family
        images = shared / "data" / "coco64" / "val"
        return BuildPlan(source, "odd", tmp_path / "r", family=family, images=images, **options)

    return plan


@pytest.mark.real
@pytest.mark.parametrize("options", [{"max_batch": 4}, {"precision": "int8"}], ids=str)
def test_the_agreement_check_runs_an_own_head(planned, shared, tmp_path, options):
    if "precision" in options:
        options |= {"calibration": shared / "data" / "coco64" / "calibration"}
    card = build_once(planned(OWN, **options))
    assert card.agreement.detections > 200
    assert card.agreement.quality > 0.9
    known = BuildPlan(shared / "models" / "yolov8n.onnx", "known", tmp_path / "r")
    build_once(known)
    pixels = read_image(shared / "data" / "bus.jpg")
    with (
        Engine.open(tmp_path / "r" / "odd" / "1", allow_code=True) as own,
        Engine.open(tmp_path / "r" / "known" / "1") as other,
    ):
        found, expected = (each.predict(pixels) for each in (own, other))
    # INT8 gives two people scores that are nearly equal.
    own, other = (each.take(np.argsort(each.boxes[:, 0])) for each in (found, expected))
    assert own.class_ids.tolist() == other.class_ids.tolist()
    np.testing.assert_allclose(own.boxes, other.boxes, atol=12 if "precision" in options else 0.1)


@pytest.mark.real
@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ("cy, cx, h, w =", "cx, cy, w, h =", "swapped"),
        ("256 * where", "where", "fractions of its input"),
        ("256 * where", "224 * where", "a wrong scale"),
        ("256 * where.", "where.mean() * 0 + 64 * np.ones_like(where).", "does not move"),
    ],
)
def test_a_decode_that_misreads_boxes_is_refused(planned, tmp_path, right, wrong, reason):
    assert right in OWN
    with pytest.raises(UnsupportedModel, match=reason):
        build(planned(OWN.replace(right, wrong)))
    assert not (tmp_path / "r" / "odd").exists()


@pytest.mark.real
def test_an_own_head_that_finds_nothing_is_unverified(planned, shared, tmp_path, grey):
    """Fovea's photographs follow the images that show nothing."""
    nothing = OWN.replace("detections(boxes, scores", "detections(boxes, scores / 9")
    assert build(replace(planned(nothing), images=grey)).head_doubt == NOTHING_SEEN
    card = build(replace(planned(OWN), images=grey))
    assert card.head_doubt is None


@pytest.mark.real
def test_an_own_head_without_a_batch_takes_one_image_at_a_time(planned):
    text = OWN.replace("    outputs", "    batched = False\n    outputs")
    with pytest.raises(InvalidOption, match="--max-batch"):
        planned(text, max_batch=2)


KINDS = {"retinaface-plate": PRIORS, "retinaface-plate-large": LARGE_PRIORS}


@pytest.fixture
def plates(tmp_path):
    """A folder with an image of plates."""
    folder = tmp_path / "plates"
    folder.mkdir()
    (folder / "plates.png").write_bytes(scene()[0])
    return folder


def check_plates(card, repository, plates):
    """The engine finds all plates, where they are."""
    pixels = read_image(plates / "plates.png")
    with Engine.open(repository / card.name / "1") as engine:
        found = engine.detect(pixels)
    assert len(found) == len(PLACES)
    distances = np.abs(found.boxes[:, None] - BOXES[None]).max(axis=2)
    assert sorted(distances.argmin(axis=1)) == list(range(len(PLACES)))
    assert distances.min(axis=1).max() < 0.5


@pytest.mark.parametrize("squeezed", [False, True], ids=["batch", "squeezed"])
@pytest.mark.parametrize("family", KINDS)
def test_plates_tell_the_priors(tmp_path, plates, family, squeezed):
    """RetinaFace of plates has one of two sets of priors."""
    [other] = (priors for name, priors in KINDS.items() if name != family)
    source = retinaface_plate(tmp_path / "other.onnx", other, squeezed=squeezed)
    one = BuildPlan(source, "p", tmp_path / "r", family=family, images=plates, preprocess={})
    with pytest.raises(
        UnsupportedModel, match="1.5 times" if family == "retinaface-plate" else "0.67 times"
    ):
        build(one)
    source = retinaface_plate(tmp_path / "p.onnx", KINDS[family], squeezed=squeezed)
    card = build(replace(one, source=source, family=None))
    assert card.family == family
    assert card.head_doubt is None
    assert [spec.shape[0] for spec in card.outputs] == [1, 1, 1]
    check_plates(card, tmp_path / "r", plates)


def test_without_plates_a_build_asks_and_then_checks_nothing(tmp_path):
    source = retinaface_plate(tmp_path / "p.onnx", LARGE_PRIORS)
    with pytest.raises(InvalidOption, match="retinaface-plate-large"):
        build(BuildPlan(source, "p", tmp_path / "r", preprocess={}))
    named = BuildPlan(source, "p", tmp_path / "r", family="retinaface-plate", preprocess={})
    card = build(named)
    assert card.head_doubt == NOTHING_SEEN
    assert card.guess.startswith(f"UNVERIFIED: {NOTHING_SEEN}")


def test_plates_with_a_squeezed_batch_of_an_old_opset(tmp_path, plates):
    source = retinaface_plate(tmp_path / "p.onnx", squeezed=True, opset=11)
    card = build(BuildPlan(source, "p", tmp_path / "r", images=plates, preprocess={}))
    check_plates(card, tmp_path / "r", plates)
