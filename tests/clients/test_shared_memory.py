"""Tensors in shared memory, through tritonclient's own helpers."""

import base64

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

pytestmark = pytest.mark.real

FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), np.int32)


@pytest.fixture
def regions(client):
    """Two regions that the server knows: two inputs in the first, two outputs in the second."""
    made = {}
    for name in ("fovea_in", "fovea_out"):
        made[name] = shm.create_shared_memory_region(name, f"/{name}", 2 * FIRST.nbytes)
        client.register_system_shared_memory(name, f"/{name}", 2 * FIRST.nbytes)
    shm.set_shared_memory_region(made["fovea_in"], [FIRST, ONES])
    yield made
    client.unregister_system_shared_memory()
    for region in made.values():
        shm.destroy_shared_memory_region(region)


def names(client) -> list[str]:
    status = client.get_system_shared_memory_status()
    listed = status if isinstance(status, list) else status.regions.values()
    return sorted(each["name"] if isinstance(each, dict) else each.name for each in listed)


def pair(protocol, *, offsets=(0, 64)):
    inputs = [protocol.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in range(2)]
    outputs = [protocol.InferRequestedOutput(f"OUTPUT{n}") for n in range(2)]
    for tensor, offset in zip(inputs, offsets, strict=True):
        tensor.set_shared_memory("fovea_in", 64, offset=offset)
    for tensor, offset in zip(outputs, (0, 64), strict=True):
        tensor.set_shared_memory("fovea_out", 64, offset=offset)
    return inputs, outputs


def test_inputs_and_outputs_in_shared_memory(client, protocol, regions):
    assert names(client) == ["fovea_in", "fovea_out"]
    inputs, outputs = pair(protocol)
    for n in range(3):
        shm.set_shared_memory_region(regions["fovea_in"], [FIRST + n, ONES])
        client.infer("simple", inputs, outputs=outputs)
        got = shm.get_contents_as_numpy(regions["fovea_out"], np.int32, [2, 16])
        np.testing.assert_array_equal(got, np.concatenate([FIRST + n + 1, FIRST + n - 1]))


def test_some_tensors_in_shared_memory(client, protocol, regions):
    inputs, _ = pair(protocol)
    inputs[1] = protocol.InferInput("INPUT1", [1, 16], "INT32")
    inputs[1].set_data_from_numpy(2 * ONES)
    result = client.infer("simple", inputs)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FIRST + 2)


def test_strings_in_shared_memory(client, protocol):
    words = np.array([[b"one", b"", b"three"]], np.object_)
    packed = serialize_byte_tensor(words)
    size = len(packed.item())
    region = shm.create_shared_memory_region("fovea_words", "/fovea_words", size)
    try:
        shm.set_shared_memory_region(region, [packed])
        client.register_system_shared_memory("fovea_words", "/fovea_words", size)
        tensor = protocol.InferInput("INPUT0", [1, 3], "BYTES")
        tensor.set_shared_memory("fovea_words", size)
        result = client.infer("identity_bytes", [tensor])
        assert result.as_numpy("OUTPUT0").tolist() == words.tolist()
    finally:
        client.unregister_system_shared_memory("fovea_words")
        shm.destroy_shared_memory_region(region)


def test_what_cannot_be_is_told_and_harms_nobody(client, protocol, regions):
    with pytest.raises(InferenceServerException, match="already in manager"):
        client.register_system_shared_memory("fovea_in", "/fovea_in", 128)
    with pytest.raises(InferenceServerException, match="Unable to open shared memory region"):
        client.register_system_shared_memory("nothing", "/fovea_nothing", 128)
    inputs, outputs = pair(protocol, offsets=(0, 2**40))
    with pytest.raises(InferenceServerException, match="Invalid offset"):
        client.infer("simple", inputs, outputs=outputs)
    client.unregister_system_shared_memory("fovea_in")
    client.unregister_system_shared_memory("never_registered")
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
        client.infer("simple", *pair(protocol)[:1])
    assert names(client) == ["fovea_out"]
    assert client.is_server_ready()


def test_cuda_memory_is_answered_sensibly_without_a_gpu(client):
    status = client.get_cuda_shared_memory_status()
    assert not (status if isinstance(status, list) else status.regions)
    client.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException, match="failed to register"):
        client.register_cuda_shared_memory("gpu", base64.b64encode(bytes(64)), 0, 64)
