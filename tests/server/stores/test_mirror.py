"""A folder that has what a store has."""

import json
import shutil
import socket
import threading
from base64 import b64encode
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.server.stores.conftest import GO, content, kept
from tests.stores import remote_packages

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
    assert "differs from the sha256 in digits/2/card.json" in mirror.refused["digits"]
    assert caplog.text.count("differs from the sha256") == 1, "once is enough"
    assert "(its earlier copy is kept)" in caplog.text

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
    assert "was damaged in the store" in mirror.refused["a"]
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


# A folder that several servers pull into, each some models, or only what describes them.


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


# Google Cloud Storage and Azure, whose packages talk to the few answers that a listing takes.

KEY, CONTENT = "prod/digits/1/model.onnx", b"an engine"
MD5 = b64encode(md5(CONTENT, usedforsecurity=False).digest()).decode()
DATE = "Mon, 23 Nov 2026 12:00:00 GMT"
OBJECT = {"name": KEY, "size": str(len(CONTENT)), "etag": "CJ", "generation": "17", "md5Hash": MD5}
BLOBS = f"""<?xml version="1.0" encoding="utf-8"?>
<EnumerationResults ServiceEndpoint="http://x/" ContainerName="models"><Blobs><Blob>
<Name>{KEY}</Name><Properties><Last-Modified>{DATE}</Last-Modified><Etag>0x8D</Etag>
<Content-Length>{len(CONTENT)}</Content-Length><Content-MD5>{MD5}</Content-MD5>
<BlobType>BlockBlob</BlobType></Properties></Blob></Blobs><NextMarker/></EnumerationResults>"""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if "comp=list" in self.path:
            self.answer(200, BLOBS.encode(), "application/xml")
        elif "/download/" in self.path:
            self.answer(206, CONTENT, "application/octet-stream")
        elif "/storage/v1/" in self.path:
            document = {"items": [OBJECT]} if "/o?" in self.path else OBJECT
            self.answer(200, json.dumps(document).encode(), "application/json")
        elif self.path.startswith(f"/account/models/{KEY}"):
            self.answer(206, CONTENT, "application/octet-stream")
        else:
            self.answer(404, b"", "text/plain")

    def do_HEAD(self):
        self.do_GET()

    def answer(self, status, content, kind):
        self.send_response(status if self.command == "GET" or status == 404 else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Range", f"bytes 0-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", '"0x8D"')
        self.send_header("Last-Modified", DATE)
        self.send_header("x-ms-blob-type", "BlockBlob")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def variables(monkeypatch):
    """The environment in which both are this server."""
    remote_packages()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    key = b64encode(b"k" * 32).decode()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    # Else it asks Google for the kind of the bucket.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING",
        f"DefaultEndpointsProtocol=http;AccountName=account;AccountKey={key};"
        f"BlobEndpoint={url}/account;",
    )
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize("address", ["gs://models/prod", "az://models/prod"])
def test_a_file_is_listed_with_its_tag_and_pulled(address, tmp_path, monkeypatch):
    mirror = Mirror(Address.parse(address), tmp_path, 1 << 30)
    mirror.pull(threading.Event())
    assert (mirror.root / "digits" / "1" / "model.onnx").read_bytes() == CONTENT
    [model] = mirror._store.models()
    [file] = model.files
    assert file.tag in ("17", "0x8D")
    assert file.digest.value == md5(CONTENT, usedforsecurity=False).hexdigest()
