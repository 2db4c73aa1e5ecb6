"""The letterbox kernel on a GPU: what the host does, alone and in a recorded graph."""

import numpy as np
import pytest
from tests.letterbox_cases import SPECS, differences, letterboxed, noise, placed, real_pictures

from fovea_engines.backends.cuda.letterbox import LetterboxKernel, compile_letterbox, packed_size


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("target", ["compute_75", "sm_{}{}"])
def test_noise_is_letterboxed_as_the_host_does_it(device, name, target):
    spec, pictures = SPECS[name], noise()
    image = compile_letterbox(spec, target.format(*device.capability))
    batch = letterboxed(device, image, spec, pictures, len(pictures))
    for row in differences(batch, spec, pictures):
        assert row.max() <= 1.1


@pytest.mark.parametrize("name", SPECS)
def test_photographs_are_letterboxed_as_the_host_does_it(device, shared, name):
    spec, pictures = SPECS[name], real_pictures(shared)
    batch = letterboxed(device, compile_letterbox(spec), spec, pictures, len(pictures))
    for row in differences(batch, spec, pictures):
        assert row.max() <= 1.1


def test_a_recorded_letterbox_takes_whatever_was_packed(device):
    spec, pictures = SPECS["image front"], noise()
    image, rows = compile_letterbox(spec), 2
    size = packed_size(rows, max(picture.nbytes for picture in pictures))
    with device.current():
        stream, kernel = device.stream(), LetterboxKernel(device, image, spec)
        staging, staged = device.pinned(size), device.alloc(size)
        made = device.alloc(rows * int(np.prod(spec.row_shape)))
        result = device.pinned(made.size)
        with device.capture(stream) as capture:
            kernel(stream, staged, rows, made)
            device.copy_out(result, made, made.size, stream)
        graph = capture.graph()
        for picture in pictures:
            packed = kernel.pack(placed(spec, [picture]), rows, staging)
            device.copy_in(staged, staging, packed, stream)
            graph.launch(stream)
            stream.synchronize()
            batch = result.array.reshape(rows, *spec.row_shape)
            assert next(differences(batch[:1], spec, [picture])).max() <= 1
            assert (batch[1] == spec.pad).all()
        for one in (graph, kernel, staging, staged, made, result, stream):
            one.close()
