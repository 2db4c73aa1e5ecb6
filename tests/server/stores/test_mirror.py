"""A folder that has what an S3 store has."""

import shutil
import socket
import threading

import pytest
from tests.server.stores.conftest import GO, content, kept

from fovea_preprocess.errors import NotFound, ShuttingDown, Unavailable
from fovea_server.stores.address import Address
from fovea_server.stores.mirror import Mirror

pytestmark = pytest.mark.real


def test_what_has_changed_is_pulled_and_what_has_left_leaves(bucket, make):
    mirror = make()
    files = {"a/1/model.onnx": b"one", "a/config.pbtxt": b"", "b/1/model.onnx": b"two"}
    for key, value in files.items():
        bucket.put(key, value)
    bucket.put("README.md", b"of people")
    bucket.put("a/2/", b"")
    mirror.pull(GO)
    assert content(mirror) == files
    before, folder = kept(mirror), (mirror.root / "a" / "1").stat()

    bucket.put("a/2/model.onnx", b"three")
    bucket.remove("b/")
    mirror.pull(GO)
    assert content(mirror) == {
        "a/1/model.onnx": b"one",
        "a/config.pbtxt": b"",
        "a/2/model.onnx": b"three",
    }
    after = kept(mirror)
    assert len(after) == 3
    assert len(before.items() & after.items()) == 2, "they were not pulled again"
    now = (mirror.root / "a" / "1").stat()
    assert now.st_mtime_ns == folder.st_mtime_ns, "the server sees no change of version 1"
    assert len(list((mirror.root.parent / "models-at").iterdir())) == 1

    again = make()
    again.pull(GO)
    assert kept(again) == after, "nor by the next server"


def test_an_engine_that_is_not_what_its_card_says_is_not_taken_over(
    bucket, make, demo_versions, caplog
):
    mirror = make()
    bucket.upload(demo_versions / "digits" / "1", "digits/1")
    mirror.pull(GO)
    before = content(mirror)

    card = demo_versions / "digits" / "2" / "card.json"
    bucket.put("digits/2/card.json", card.read_bytes())
    mirror.pull(GO)
    assert content(mirror) == before
    assert "is not there, and digits/2/card.json names it" in mirror.refused["digits"]

    bucket.upload(demo_versions / "digits" / "2", "digits/2")
    mirror.pull(GO)
    assert not mirror.refused
    before = content(mirror)
    assert "digits/2/model.xml" in before

    bucket.put("digits/2/model.xml", b"something else")
    for _ in range(3):
        mirror.pull(GO)
    assert content(mirror) == before
    assert "has not the sha256 that digits/2/card.json gives" in mirror.refused["digits"]
    assert caplog.text.count("has not the sha256") == 1, "once is enough"
    assert "(it stays as it was)" in caplog.text

    bucket.put("digits/2/card.json", b"{")
    mirror.pull(GO)
    assert mirror.refused["digits"].startswith("digits/2/card.json is not JSON")
    assert content(mirror) == before


def test_bytes_that_are_not_those_of_the_store_are_refused(bucket, make):
    mirror = make()
    bucket.put("a/1/model.onnx", b"right")
    bucket.put("b/1/model.onnx", b"fine")
    bucket.damage("a/1/model.onnx", b"wrong")
    bucket.put("c/1/model.onnx", b"right", ChecksumAlgorithm="CRC32")
    bucket.damage("c/1/model.onnx", b"wrong")
    mirror.pull(GO)
    assert list(content(mirror)) == ["b/1/model.onnx"]
    assert "c/1/model.onnx was damaged" in mirror.refused["c"]
    assert "damaged there or on its way" in mirror.refused["a"]
    assert list(mirror.refused_new) == ["a", "c"]
    bucket.put("a/1/model.onnx", b"right again")
    bucket.remove("c/")
    mirror.pull(GO)
    assert not mirror.refused
    assert content(mirror)["a/1/model.onnx"] == b"right again"


def test_the_tag_of_an_encrypted_file_is_no_digest_of_it(bucket, make):
    mirror = make()
    bucket.put("a/1/model.onnx", b"right", ServerSideEncryption="aws:kms")
    bucket.damage("a/1/model.onnx", b"other")
    mirror.pull(GO)
    assert content(mirror) == {"a/1/model.onnx": b"other"}


def test_a_large_file_of_several_parts_says_how_far_it_is(bucket, make, caplog, monkeypatch):
    monkeypatch.setattr("fovea_server.stores.fetch._SILENCE_S", 0)
    caplog.set_level("INFO")
    mirror = make()
    upload = {"Bucket": bucket.name, "Key": "prod/a/1/model.onnx"}
    begun = upload | {"UploadId": bucket.client.create_multipart_upload(**upload)["UploadId"]}
    parts = [b"x" * (5 << 20), b"y" * (5 << 20), b"z"]
    tags = [
        bucket.client.upload_part(**begun, PartNumber=n, Body=part)["ETag"]
        for n, part in enumerate(parts, 1)
    ]
    listed = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]
    bucket.client.complete_multipart_upload(**begun, MultipartUpload={"Parts": listed})
    mirror.pull(GO)
    assert content(mirror) == {"a/1/model.onnx": b"".join(parts)}
    assert f"pulling 1 file, 10.5 MB, of {bucket.address}" in caplog.text
    assert f"pulling {bucket.address}: 8.4 MB of 10.5 MB, 0 s" in caplog.text
    assert f"pulled 10.5 MB of {bucket.address} in" in caplog.text


def test_keys_that_lead_out_write_nothing_outside(bucket, make, tmp_path):
    mirror = make()
    bucket.put("fine/1/model.onnx", b"fine")
    bucket.put("bad/1/model.onnx", b"bad")
    bucket.put("bad/../../../../escaped", b"bad")
    bucket.put("case/1/model.onnx", b"a")
    bucket.put("case/1/MODEL.onnx", b"b")
    mirror.pull(GO)
    assert list(content(mirror)) == ["fine/1/model.onnx"]
    assert set(mirror.refused) == {"bad", "case"}
    assert not list(tmp_path.rglob("escaped"))


def test_a_repository_over_the_limit_is_not_pulled(bucket, make):
    bucket.put("a/1/model.onnx", b"x" * 2000)
    mirror = make(most_bytes=1000)
    with pytest.raises(Unavailable, match="--repository-max-gb"):
        mirror.pull(GO)
    assert not kept(mirror)


def test_an_empty_answer_is_a_mistake_and_removes_nothing(bucket, make):
    bucket.put("a/1/model.onnx", b"x")
    mirror = make()
    mirror.pull(GO)
    bucket.remove("")
    with pytest.raises(NotFound):
        mirror.pull(GO)
    bucket.put("index.html", b"please log in")
    with pytest.raises(NotFound):
        mirror.pull(GO)
    assert content(mirror) == {"a/1/model.onnx": b"x"}
    with pytest.raises((NotFound, Unavailable), match="s3://no-such-bucket"):
        Mirror(Address.parse("s3://no-such-bucket/x"), mirror.root, 1 << 30).check()


def test_what_a_killed_pull_has_left_is_not_seen_and_goes(bucket, make):
    bucket.put("a/1/model.onnx", b"x")
    mirror = make()
    folder = mirror.root.parent
    (folder / "files" / "abc.part").write_bytes(b"half")
    (folder / "models-at" / "abc" / "a" / "1").mkdir(parents=True)
    (mirror.root / ".a.fresh").symlink_to("../models-at/abc/a")
    assert not mirror.has_models
    mirror.pull(GO)
    assert content(mirror) == {"a/1/model.onnx": b"x"}
    left = [p.name for p in folder.rglob("*") if p.name.endswith(".part") or "abc" in p.name]
    assert not left
    assert not list(mirror.root.glob(".*"))
    shutil.rmtree(folder / "models-at")
    mirror.pull(GO)
    assert content(mirror) == {"a/1/model.onnx": b"x"}, "a cache that was tampered with is mended"


def test_two_servers_share_a_cache(bucket, make):
    for name in "abcdef":
        bucket.put(f"{name}/1/model.onnx", name.encode() * 1000)
    mirrors = [make() for _ in range(4)]
    threads = [threading.Thread(target=mirror.pull, args=(GO,)) for mirror in mirrors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(content(mirrors[0])) == 6
    assert len(kept(mirrors[0])) == 6


def test_a_pull_ends_when_the_server_stops(bucket, make):
    bucket.put("a/1/model.onnx", b"x")
    mirror, stop = make(), threading.Event()
    stop.set()
    with pytest.raises(ShuttingDown):
        mirror.pull(stop)
    assert not mirror.has_models


def test_a_store_that_never_answers_is_given_up(make, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr("fovea_server.stores.store._PATIENCE_S", 0.2)
        with pytest.raises(Unavailable):
            make().check()


def test_an_error_of_a_store_is_told_without_what_may_be_secret(make):
    told = make()._store._unavailable(OSError("GET https://me:hush@host/x?sig=hush 'failed'\nmore"))
    assert "GET https://***@host/x?... 'failed'" in str(told)
    assert "hush" not in str(told)
    assert "more" not in str(told)
