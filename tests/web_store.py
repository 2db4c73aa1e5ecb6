"""A folder behind a web server of this machine."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha1, sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class WebStore(ThreadingHTTPServer):
    """A folder over HTTP, with indexes and ETags; and the parts of the Hugging Face Hub's API.

    Attributes:
        asked: method and path of each request.
        open: while it is clear, no more than the begin of an ONNX file is sent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.open = threading.Event()
        self.open.set()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def tree(self) -> list[dict[str, object]]:
        """As the hub lists a revision; an engine is in LFS."""
        tree: list[dict[str, object]] = []
        for path in (p for p in self.folder.rglob("*") if p.is_file()):
            content = path.read_bytes()
            git = sha1(b"blob %d\0" % len(content) + content).hexdigest()
            file = {"type": "file", "path": str(path.relative_to(self.folder)), "oid": git}
            size = {"size": len(content)}
            lfs = size | {"oid": sha256(content).hexdigest(), "pointerSize": 134}
            tree.append(file | size | ({"lfs": lfs} if path.suffix == ".onnx" else {}))
        return tree


class _Handler(SimpleHTTPRequestHandler):
    server: WebStore

    def __init__(self, request: Any, address: Any, server: WebStore) -> None:
        super().__init__(request, address, server, directory=str(server.folder))

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        if self.path.startswith("/api/models/"):
            self.answer_of_hub()
        else:
            super().do_GET()

    def answer_of_hub(self) -> None:
        document = self.server.tree() if "/tree/" in self.path else {"id": "org/m"}
        text = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        super().end_headers()
        self.wfile.write(text)

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.replace("/org/m/resolve/v1/", "/"))

    def end_headers(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.is_file():
            self.send_header("ETag", f'"{sha1(path.read_bytes()).hexdigest()}"')
        super().end_headers()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        outputfile.write(source.read(100))
        outputfile.flush()
        if self.path.endswith(".onnx"):
            self.server.open.wait(60)
        with suppress(OSError):  # a client that has left
            super().copyfile(source, outputfile)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web_store(folder: Path) -> Iterator[WebStore]:
    """Serve a folder."""
    store = WebStore(folder)
    thread = threading.Thread(target=store.serve_forever)
    thread.start()
    yield store
    store.open.set()
    store.shutdown()
    thread.join()
    store.server_close()
