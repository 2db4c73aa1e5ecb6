"""A receiver of webhooks: a real HTTP server that fails as it is told to."""

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson


class Receiver:
    """Its answers, and the requests that it took.

    Attributes:
        faults: taken one by one, and then all is well: a status, "hang" or "close"; "late" takes
            the request and answers after a while.
        refuses: the status for an event that it takes never, None for the others.
        taken: header fields and body of each request that it answered with 200.
    """

    def __init__(self):
        self.faults = []
        self.refuses = lambda event: None
        self.taken = []
        self.asked = 0
        self.over = threading.Event()

    @property
    def events(self):
        return [orjson.loads(body) for _, body in self.taken]

    def wait_for(self, count):
        until = time.monotonic() + 120
        while (came := len({head["webhook-id"] for head, _ in list(self.taken)})) < count:
            assert time.monotonic() < until, f"{came} of {count} came"
            time.sleep(0.01)


@contextmanager
def receiving(receiver, port=0):
    """Listen; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            receiver.asked += 1
            body = self.rfile.read(int(self.headers["content-length"]))
            fault = receiver.faults.pop(0) if receiver.faults else None
            fault = fault or receiver.refuses(orjson.loads(body))
            if fault == "hang":
                receiver.over.wait(30)
            if fault in ("hang", "close"):
                self.close_connection = True
                return
            if fault in (None, "late"):
                receiver.taken.append((dict(self.headers), body))
            if fault == "late":
                time.sleep(0.5)
            self.send_response(fault if isinstance(fault, int) else 200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_port
    finally:
        receiver.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
