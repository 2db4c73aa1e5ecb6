"""A session that takes images gives what it gives for the rows that the host makes of them."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import onnx
import pytest
from tests.engines.fake_device import fake_gpu
from tests.engines.host_kernel import HostDevice, engine_of, host_image, open_images, through
from tests.letterbox_cases import SPECS, differences

from fovea_engines.backends.tensorrt.cuda.letterbox import IMAGE
from fovea_engines.backends.tensorrt.session import TensorRTImageSession
from fovea_engines.backends.tensorrt.slot import most_image_bytes, staging_bytes
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.session import ImageSession
from fovea_preprocess.errors import InferenceFailed, InvalidModel, OutOfMemory
from fovea_preprocess.preprocessor import Placer, Preprocessor
from fovea_preprocess.spec import PreprocessSpec

pytestmark = pytest.mark.real

SMALL = PreprocessSpec(48, 64, dtype="uint8", layout="NHWC")
FULL_HD = 1920 * 1080 * 3


@pytest.fixture
def device():
    with fake_gpu(kind=HostDevice) as device:
        yield device


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The kernel for a spec."""
    folder = tmp_path_factory.mktemp("kernels")
    return cache(lambda spec: host_image(spec, folder))


@pytest.fixture
def opened(tmp_path, device, compiled):
    """Open a session of a network that gives what it takes."""

    def open_session(spec: PreprocessSpec, **options) -> TensorRTImageSession:
        onnx.save(through(spec), tmp_path / "m.onnx")
        made = engine_of(tmp_path / "m.onnx", device, rows=4)
        return open_images(made, compiled(spec), spec, **{"max_batch": 4} | options)

    return open_session


def noise(*sizes: tuple[int, int]) -> list[np.ndarray]:
    random = np.random.default_rng(len(sizes))
    return [random.integers(0, 256, (high, wide, 3), np.uint8) for wide, high in sizes]


def infer(session: ImageSession, images: list[np.ndarray]) -> np.ndarray:
    return session.infer_images([session.place(p)[0] for p in images])["row"]


def served(session: ImageSession, spec: PreprocessSpec) -> None:
    """Every batch size in every slot is answered rightly."""
    for count in (*range(1, 5), *range(1, 5)):
        images = noise(*[(20 * n + 30, 90) for n in range(count)])
        for row in differences(infer(session, images), spec, images):
            assert row.max() <= 1


@pytest.mark.parametrize("name", ["image front", "yolox", "classifier"])
def test_rows_are_those_of_the_host(opened, name):
    spec = SPECS[name]
    with opened(spec) as session:
        assert isinstance(session, ImageSession)
        images = noise((1, 1), (640, 480), (300, 900), (37, 1000))
        rows = infer(session, images)
    assert rows.flags.owndata
    for row in differences(rows, spec, images):
        assert row.max() <= 1.1


@pytest.mark.parametrize("name", SPECS)
def test_what_is_too_large_is_letterboxed_by_the_host_and_stays_as_it_is(opened, name):
    spec, [image] = SPECS[name].bare, noise((1100, 2000))
    assert image.nbytes > FULL_HD
    want = np.empty(spec.row_shape, np.uint8)
    back = Preprocessor(spec)(image, want)
    with opened(spec, slots=1) as session:
        placed, box = session.place(image)
        assert box == back
        assert placed.pixels.nbytes == want.nbytes
        np.testing.assert_array_equal(session.infer_images([placed])["row"], [want])


def test_what_is_not_too_large_is_not_copied():
    [image] = noise((1920, 1080))
    place = Placer(SMALL, image.nbytes)
    assert place(image)[0].pixels is image
    turned = image.transpose(1, 0, 2)
    assert place(turned)[0].pixels is turned


def test_images_of_any_strides(opened):
    with opened(SMALL) as session:
        [image] = noise((90, 70))
        views = [image[::-1], image[::2, ::3], image.transpose(1, 0, 2)]
        for row in differences(infer(session, views), SMALL, views):
            assert row.max() <= 1


def test_a_batch_is_one_copy_one_kernel_and_one_launch(opened, device):
    with opened(SMALL, slots=1) as session:
        alive = dict(device.alive)
        device.trace.clear()
        device.copied.clear()
        images = noise((100, 80), (30, 20), (64, 48))
        infer(session, images)
        steps = [operation for operation, _ in device.trace]
        assert steps == ["copy_in", "kernel", "execute", "copy_out"]
        sent = 4 * IMAGE.itemsize + sum(p.nbytes for p in images)
        assert device.copied == {"in": sent, "out": 3 * 48 * 64 * 3}
        assert device.alive == alive


def test_large_batches_are_split(opened, device):
    with opened(SMALL, max_batch=10) as session:
        device.trace.clear()
        images = noise(*[(50 + n, 60) for n in range(9)])
        for row in differences(infer(session, images), SMALL, images):
            assert row.max() <= 1
        assert [step for step, _ in device.trace].count("execute") == 3
        for wrong in ([], images[:1] * 11):
            with pytest.raises(InferenceFailed, match="10"):
                infer(session, wrong)


def test_rows_are_taken_as_well(opened):
    [image] = noise((64, 48))
    with opened(SMALL, slots=1) as session:
        for _ in range(2):
            served(session, SMALL)
            np.testing.assert_array_equal(session.infer({"images": image[None]})["row"][0], image)


@pytest.mark.parametrize("when", ["enqueue", "run"])
@pytest.mark.parametrize("operation", ["copy_in", "kernel", "execute", "copy_out"])
def test_a_fault_ends_one_batch(opened, device, operation, when):
    if (operation, when) == ("execute", "enqueue"):
        operation = "launch"
    with opened(SMALL) as session:
        alive = dict(device.alive)
        for _ in range(2):
            device.fail(operation, when)
            with pytest.raises(InferenceFailed):
                infer(session, noise((90, 50), (20, 30)))
            served(session, SMALL)
        assert device.alive == alive


def test_threads_share_the_slots(opened):
    with opened(SMALL) as session, ThreadPoolExecutor(8) as pool:
        batches = [noise(*[(20 + n % 50, 40)] * (1 + n % 4)) for n in range(60)]
        for rows, images in zip(
            pool.map(lambda b: infer(session, b), batches), batches, strict=True
        ):
            for row in differences(rows, SMALL, images):
                assert row.max() <= 1


def test_memory_is_taken_at_load_and_given_back_at_close(opened, device):
    session = opened(SMALL)
    with device.current():
        free, total = device.memory()
    row = 2 * 48 * 64 * 3
    assert total - free == 2 * (4096 + 4 * row + staging_bytes(SMALL, 4))
    session.close()
    session.close()
    assert device.closed
    with pytest.raises(InferenceFailed):
        infer(session, noise((4, 4)))


def test_images_that_do_not_fit_are_refused_before_anything_is_taken(tmp_path, compiled):
    onnx.save(through(SMALL), tmp_path / "m.onnx")
    with fake_gpu(40_000_000, HostDevice) as device:
        made = engine_of(tmp_path / "m.onnx", device, rows=4)
        with pytest.raises(OutOfMemory, match=r"needs 49\.\d MB .* inputs and outputs"):
            open_images(made, compiled(SMALL), SMALL, max_batch=4)
        assert +device.alive == {}
        open_images(made, compiled(SMALL), SMALL, max_batch=4, slots=1).close()


def test_a_kernel_of_another_input_is_refused(tmp_path, device, compiled):
    onnx.save(through(SMALL), tmp_path / "m.onnx")
    made, other = engine_of(tmp_path / "m.onnx", device, rows=4), SPECS["yolo"]
    with pytest.raises(InvalidModel):
        open_images(made, compiled(other), other, max_batch=4)
    assert +device.alive == {}


def test_how_large_an_image_may_be():
    assert most_image_bytes(SMALL, 1) == most_image_bytes(SMALL, 40) == FULL_HD
    assert most_image_bytes(SMALL, 64) == 4 << 20
    large = PreprocessSpec(2048, 2048)
    assert most_image_bytes(large, 1) == most_image_bytes(large, 1024) == 2048 * 2048 * 3


def test_yolov8n_finds_what_it_finds_on_the_cpu(shared, tmp_path, device, compiled):
    model = shared / "models" / "yolov8n.onnx"
    build(BuildPlan(model, "n", tmp_path, "onnxruntime", image_front=True))
    image = read_image(shared / "data" / "bus.jpg")
    with Engine.open(tmp_path / "n" / "1", threads=2) as cpu:
        assert cpu.images is None
        want, spec = cpu.detect(image), cpu.card.preprocess
        made = engine_of(tmp_path / "n" / "1" / "model.onnx", device, rows=1)
        session = open_images(made, compiled(spec), spec, max_batch=1)
        with Engine(cpu.card, session) as gpu:
            device.trace.clear()
            have = gpu.detect(image)
    assert [operation for operation, _ in device.trace][:2] == ["copy_in", "kernel"]
    assert len(want.boxes) > 3
    assert have.class_ids.tolist() == want.class_ids.tolist()
    np.testing.assert_allclose(have.boxes, want.boxes, atol=0.5)
    np.testing.assert_allclose(have.scores, want.scores, atol=0.01)
