"""The letterbox kernel on a GPU: what the host does, alone and in a recorded graph."""

import numpy as np
import pytest
from tests.letterbox_cases import SPECS, differences, letterboxed, noise, placed, real_images

from fovea_engines.backends.tensorrt.cuda.letterbox import (
    LetterboxKernel,
    compile_letterbox,
    packed_size,
)

pytestmark = pytest.mark.real


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("target", ["compute_75", "sm_{}{}"])
def test_noise_is_letterboxed_as_the_host_does_it(device, name, target):
    spec, images = SPECS[name], noise()
    compiled = compile_letterbox(spec, target.format(*device.capability))
    batch = letterboxed(device, compiled, spec, images, len(images))
    for row in differences(batch, spec, images):
        assert row.max() <= 1.1


@pytest.mark.parametrize("name", SPECS)
def test_photographs_are_letterboxed_as_the_host_does_it(device, shared, name):
    spec, images = SPECS[name], real_images(shared)
    batch = letterboxed(device, compile_letterbox(spec), spec, images, len(images))
    for row in differences(batch, spec, images):
        assert row.max() <= 1.1


def test_a_recorded_letterbox_takes_whatever_was_packed(device):
    spec, images = SPECS["image front"], noise()
    compiled, rows = compile_letterbox(spec), 2
    size = packed_size(rows, max(image.nbytes for image in images))
    with device.current():
        stream, kernel = device.stream(), LetterboxKernel(device, compiled, spec)
        staging, staged = device.pinned(size), device.alloc(size)
        made = device.alloc(rows * int(np.prod(spec.row_shape)))
        result = device.pinned(made.size)
        with device.capture(stream) as capture:
            kernel(stream, staged, rows, made)
            device.copy_out(result, made, made.size, stream)
        graph = capture.graph()
        for image in images:
            packed = kernel.pack(placed(spec, [image]), rows, staging)
            device.copy_in(staged, staging, packed, stream)
            graph.launch(stream)
            stream.synchronize()
            batch = result.array.reshape(rows, *spec.row_shape)
            assert next(differences(batch[:1], spec, [image])).max() <= 1
            assert (batch[1] == spec.pad).all()
        for one in (graph, kernel, staging, staged, made, result, stream):
            one.close()
