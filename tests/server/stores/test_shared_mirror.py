"""A folder that several servers pull into, each some models, or only what describes them."""

import shutil

import pytest
from tests.server.stores.conftest import GO, content, kept

pytestmark = pytest.mark.real


def test_servers_of_different_models_share_a_folder(bucket, make):
    bucket.put("a/1/model.onnx", b"one")
    bucket.put("b/1/model.onnx", bytes(1000))
    first, second = make(only=("a",), most_bytes=900), make(only=("b",))
    first.pull(GO)
    assert set(content(first)) == {"a/1/model.onnx"}
    assert not second.has_models
    second.pull(GO)
    first.pull(GO)
    assert set(content(first)) == {"a/1/model.onnx", "b/1/model.onnx"}
    assert len(kept(first)) == 2
    bucket.remove("b/")
    first.pull(GO)
    assert set(content(second)) == {"a/1/model.onnx"}


def test_what_another_server_has_begun_to_pull_stays(bucket, make):
    for name in ("a", "b"):
        bucket.put(f"{name}/1/model.onnx", name.encode())
    first, second = make(only=("a",)), make(only=("b",))
    second.pull(GO)
    [link] = second.root.iterdir()
    shutil.rmtree(link.resolve())
    link.unlink()
    first.pull(GO)
    assert len(kept(first)) == 2


def test_a_version_of_which_the_store_lacks_a_file_is_not_described(bucket, make, demo_repository):
    folder = demo_repository / "digits" / "1"
    bucket.put("digits/1/card.json", (folder / "card.json").read_bytes())
    mirror = make(described=True)
    mirror.pull(GO)
    assert content(mirror) == {}
    assert "has the upload not ended?" in mirror.refused["digits"]
    for path in folder.iterdir():
        bucket.put(f"digits/1/{path.name}", path.read_bytes())
    mirror.pull(GO)
    assert set(content(mirror)) == {"digits/1/card.json"}


def test_no_engine_is_pulled_where_a_card_describes_it(bucket, make, demo_repository):
    bucket.upload(demo_repository / "digits", "digits")
    bucket.put("digits/1/weights/part.bin", b"of the engine")
    bucket.put("digits/labels.txt", b"0")
    bucket.put("plain/1/model.onnx", b"without a card")
    mirror = make(described=True)
    mirror.pull(GO)
    pulled = set(content(mirror))
    assert {"digits/1/card.json", "digits/labels.txt", "plain/1/model.onnx"} <= pulled
    assert {path for path in pulled if path.startswith("digits/1/")} == {"digits/1/card.json"}
    whole = make()
    whole.pull(GO)
    assert "digits/1/weights/part.bin" in content(whole)
    assert "digits/1/weights/part.bin" not in content(mirror)
