"""Google Cloud Storage and Azure, whose packages talk to the few answers that a listing takes."""

import json
import threading
from base64 import b64encode
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.stores import remote_packages

from fovea_server.stores.address import Address
from fovea_server.stores.mirror import Mirror

pytestmark = pytest.mark.real

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
