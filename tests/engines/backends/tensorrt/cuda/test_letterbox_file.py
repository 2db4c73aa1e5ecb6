"""The kernel beside a plan: written by a build, and used where it can be."""

import logging
from pathlib import Path

import numpy as np
import pytest
from tests.drawn import draw
from tests.engines.fake_device import fake_gpu
from tests.engines.host_kernel import HostDevice, write_host_letterbox
from tests.engines.noting import Noting
from tests.engines.rtx import tamper

from fovea_engines.backends.installing import install_extra
from fovea_engines.backends.tensorrt.cuda.letterbox import (
    LETTERBOX_FILE,
    compile_letterbox,
    open_letterbox,
    write_letterbox,
)
from fovea_engines.engine import Engine
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.files import file_sha256
from fovea_preprocess.errors import InvalidModel
from fovea_preprocess.spec import PreprocessSpec

SPEC = PreprocessSpec(48, 64, dtype="uint8", layout="NHWC")


def seal(folder: Path) -> None:
    """Let the card name the files that are there now."""
    files = [
        name for name in EngineCard.read(folder / "card.json").files if (folder / name).exists()
    ]
    tamper(folder, files={name: file_sha256(folder / name) for name in files})


def test_a_build_writes_it_for_every_gpu(built_plan):
    card = EngineCard.read(built_plan / "card.json")
    assert card.files[LETTERBOX_FILE] == file_sha256(built_plan / LETTERBOX_FILE)
    kernel = (built_plan / LETTERBOX_FILE).read_bytes().partition(b"\n")[2]
    assert kernel == compile_letterbox(card.preprocess)
    assert b".target sm_75" in kernel


def test_an_engine_with_it_letterboxes_on_the_gpu(machine, folder, monkeypatch, built_repository):
    write_host_letterbox(folder, EngineCard.read(folder / "card.json").preprocess)
    seal(folder)
    device = HostDevice()
    machine.devices.append(device)
    monkeypatch.setattr("fovea_engines.backends.tensorrt.engine_file.open_device", lambda: device)
    pixels = draw(90, 160, 0)
    with Engine.open(folder) as engine, Engine.open(built_repository / "tiny" / "1") as source:
        assert engine.images is engine.session
        device.trace.clear()
        have, want = engine.detect(pixels), source.detect(pixels)
    assert [operation for operation, _ in device.trace][:2] == ["copy_in", "kernel"]
    assert len(want)
    np.testing.assert_array_equal(have.class_ids, want.class_ids)
    np.testing.assert_allclose(have.boxes, want.boxes, atol=1.5)


def test_where_the_driver_refuses_it_the_host_letterboxes(machine, folder, caplog):
    with caplog.at_level(logging.WARNING), Engine.open(folder) as engine:
        assert engine.images is None
        assert len(engine.detect(draw(64, 80, 0)))
    [told] = [r.getMessage() for r in caplog.records if LETTERBOX_FILE in r.getMessage()]
    assert "the CPU letterboxes images" in told


def test_without_it_the_host_letterboxes(machine, folder):
    (folder / LETTERBOX_FILE).unlink()
    seal(folder)
    with Engine.open(folder) as engine:
        assert engine.images is None
        assert len(engine.detect(draw(64, 80, 0)))


def test_without_a_compiler_the_build_says_so(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError("No module named 'cuda'")

    monkeypatch.setattr("fovea_engines.backends.tensorrt.cuda.letterbox.import_module", missing)
    progress = Noting()
    write_letterbox(tmp_path, SPEC, progress)
    assert list(tmp_path.iterdir()) == []
    assert "so the CPU letterboxes images: " in progress.notes[0]
    assert install_extra("tensorrt") in progress.notes[0]


@pytest.mark.parametrize("damaged", [b"", b"// {\n", b"// 1\n.version 8.0", b'// {"size": 3}\n'])
def test_a_damaged_one_is_told(tmp_path, damaged):
    (tmp_path / LETTERBOX_FILE).write_bytes(damaged)
    damage = pytest.raises(InvalidModel, match=r"letterbox\.ptx")
    with fake_gpu() as device, device.current(), damage:
        open_letterbox(tmp_path, device)
