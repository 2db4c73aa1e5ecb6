"""Files of indexes that are damaged or odd: each is refused, and none takes memory first."""

import io
import os
import threading
import zipfile

import numpy as np
import pytest

from fovea_preprocess.errors import InvalidModel, InvalidOption
from fovea_preprocess.image import decode_image
from fovea_server.search.feature import Search
from fovea_server.search.index import ModelIdentity, Thumbnails, VectorIndex, thumbnail

VECTORS = np.random.default_rng(0).normal(size=(100, 16)).astype(np.float32)
NAMES = np.array([f"{at}.jpg" for at in range(100)])


def header(shape, kind="<f4"):
    content = io.BytesIO()
    form = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, form)
    return content.getvalue()


def npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def npz(vectors=VECTORS, names=NAMES, *, save=np.savez):
    content = io.BytesIO()
    save(content, vectors=vectors, names=names)
    return content.getvalue()


def patched(local, central, change):
    """An index of which a byte of every member's headers is another."""
    content = bytearray(npz())
    for mark, at in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        start = content.find(mark)
        while start >= 0:
            content[start + at] = change(content[start + at])
            start = content.find(mark, start + 4)
    return bytes(content)


def overwritten(content):
    return content[:1000] + b"\xff" * 50 + content[1050:]


def zipped(**members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return content.getvalue()


def bomb():
    """An index that says it has 4 GB, in a few hundred bytes."""
    content = bytearray(zipped(vectors=npy(np.zeros((100, 16), np.float32)), names=npy(NAMES)))
    at = content.find(b"PK\x01\x02") + 24
    content[at : at + 4] = (0xF0000000).to_bytes(4, "little")
    second = content.find(b"PK\x01\x02", at) + 24
    content[second : second + 4] = (0xF0000000).to_bytes(4, "little")
    return bytes(content)


def test_what_is_written_is_read(tmp_path):
    for save in (np.savez, np.savez_compressed):
        (tmp_path / "index.npz").write_bytes(npz(save=save))
        index = VectorIndex.read(tmp_path / "index.npz")
        np.testing.assert_allclose(np.linalg.norm(index.vectors, axis=1), 1, atol=1e-6)
        assert list(index.names) == NAMES.tolist()
    for vectors in (np.asfortranarray(VECTORS), VECTORS.astype(">f8"), VECTORS.astype(np.float16)):
        np.save(tmp_path / "index.npy", vectors)
        np.testing.assert_allclose(
            VectorIndex.read(tmp_path / "index.npy").vectors, index.vectors, atol=2e-3
        )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (header((10**11, 256)), "102,400,000,000,000 bytes, but has 0"),
        (header((10**11, 0)), "2 dimensions"),
        (header((-1, 4)), "should have"),
        (npy(VECTORS)[:-1], "but has 6,399"),
        (npy(VECTORS.astype(np.int32)), "must be float"),
        (npy(VECTORS[0]), "with 2 dimensions"),
        (npy(np.full((2, 4), 1e200)), "far too large"),
        (npy(np.full((2, 4), np.inf)), "infinite"),
        (b"", "cannot be read"),
        (b"\x93NUMPY\x01\x00\xff\xff", "cannot be read"),
    ],
)
def test_vectors_that_are_refused(tmp_path, content, says):
    (tmp_path / "index.npy").write_bytes(content)
    with pytest.raises(InvalidModel, match=says) as error:
        VectorIndex.read(tmp_path / "index.npy")
    assert "build it again with `fovea index`" in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (zipped(vectors=header((10**11, 256))), "102,400,000,000,000 bytes"),
        (bomb(), "exceeds the limit"),
        (patched(6, 8, lambda byte: byte | 1), "encrypted"),
        (patched(8, 10, lambda _: 99), "unsupported compression"),
        (overwritten(npz()), "CRC"),
        (overwritten(npz(save=np.savez_compressed)), "cannot be read"),
        (npz()[:3000], "zip"),
        (npz(names=np.array("abc")), "names is <U3"),
        (npz(names=NAMES.astype(np.bytes_)), "must be text"),
        (npz(names=NAMES[:, None]), "with 1 dimension"),
        (npz(names=NAMES[:3]), "3 names"),
        (zipped(vectors=npy(VECTORS)), "array names is missing"),
        (zipped(vectors=npy(VECTORS), names=header((10**11,), "<U0")), "must be text"),
        (npz(np.full((100, 4), 1e200)), "far too large"),
        (zipped(vectors=npy(VECTORS), names=npy(NAMES), model=npy(NAMES)), "has 100 parts"),
        (zipped(vectors=npy(VECTORS), names=npy(NAMES), model=npy(VECTORS)), "must be text"),
    ],
)
def test_indexes_that_are_refused(tmp_path, content, says):
    (tmp_path / "index.npz").write_bytes(content)
    with pytest.raises(InvalidModel, match=says) as error:
        VectorIndex.read(tmp_path / "index.npz")
    assert "build it again with `fovea index`" in str(error.value)


def test_a_name_that_is_no_text_can_be_answered(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    VectorIndex.of(VECTORS[:1], [name]).write(tmp_path / "index.npz")
    assert list(VectorIndex.read(tmp_path / "index.npz").names) == ["caf?.jpg"]


def test_an_index_says_which_model_made_it(tmp_path):
    path = tmp_path / "index.npz"
    path.write_bytes(npz())
    assert VectorIndex.read(path).model is None
    model = ModelIdentity("network", "preprocessing", "0")
    VectorIndex.of(VECTORS, NAMES.tolist(), model).write(path)
    assert VectorIndex.read(path).model == model


def test_thumbnails_are_those_of_the_images(tmp_path):
    path, pixels = tmp_path / "index.npz", np.zeros((300, 200, 3), np.uint8)
    pixels[..., 0] = 200
    files = [thumbnail(pixels), thumbnail(pixels[:1, :1]), thumbnail(pixels[:, :5])]
    shapes = [decode_image(file).pixels.shape for file in files]
    assert shapes == [(128, 85, 3), (1, 1, 3), (128, 2, 3)]
    assert np.abs(decode_image(files[0]).pixels.astype(int) - [200, 0, 0]).max() < 4
    VectorIndex.of(VECTORS[:3], ["a", "b", "c"], thumbnails=Thumbnails.of(files)).write(path)
    read = VectorIndex.read(path)
    assert [read.thumbnails[at] for at in range(3)] == files
    best, second, _ = read.nearest(read.vectors[1], 3, thumbnails=True)
    assert (best.name, best.thumbnail) == ("b", files[1])
    assert second.thumbnail == files["abc".index(second.name)]
    assert read.nearest(read.vectors[1], 1)[0].thumbnail is None


@pytest.mark.parametrize("ends", [[3, 2, 6], [2, 4], [2, 4, 5], [-1, 4, 6]])
def test_thumbnails_of_other_images_are_refused(tmp_path, ends):
    with (tmp_path / "index.npz").open("wb") as file:
        pictures = np.zeros(6, np.uint8)
        np.savez(file, vectors=VECTORS[:3], names=NAMES[:3], thumbnails=pictures, ends=ends)
    with pytest.raises(InvalidModel):
        VectorIndex.read(tmp_path / "index.npz")


def test_an_index_that_could_not_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("fovea_server.search.index.MAX_BYTES", 6000)
    with pytest.raises(InvalidOption, match="8,800"):
        VectorIndex.of(VECTORS, NAMES.tolist()).write(tmp_path / "index.npz")
    assert [*tmp_path.iterdir()] == []


def test_two_may_write_an_index_at_once(tmp_path):
    path = tmp_path / "index.npz"
    made = [VectorIndex.of(VECTORS[:size], NAMES[:size].tolist()) for size in (10, 90)]

    def write(index):
        for _ in range(20):
            index.write(path)

    threads = [threading.Thread(target=write, args=(each,)) for each in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(VectorIndex.read(path).names) in (10, 90)
    assert [each.name for each in tmp_path.iterdir()] == ["index.npz"]


# Indexes that are kept: one that is read slowly holds no other up.


WAIT_S = 30


def test_a_slow_index_does_not_hold_up_others(tmp_path, monkeypatch):
    for name in ("slow", "quick"):
        np.save(tmp_path / f"{name}.npy", np.eye(3, dtype=np.float32))
    begun, go_on, read = threading.Event(), threading.Event(), VectorIndex.read

    def slowly(path):
        if path.stem == "slow":
            begun.set()
            assert go_on.wait(WAIT_S)
        return read(path)

    monkeypatch.setattr(VectorIndex, "read", slowly)
    part = Search()
    slow, quick = (
        threading.Thread(target=part.index, args=(tmp_path, name), daemon=True)
        for name in ("slow", "quick")
    )
    slow.start()
    assert begun.wait(WAIT_S)
    quick.start()
    quick.join(WAIT_S)
    assert not quick.is_alive()
    go_on.set()
    slow.join(WAIT_S)
    assert part.index(tmp_path, "slow") is part.index(tmp_path, "slow")
