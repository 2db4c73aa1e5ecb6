"""LitServe, with a process a core: python litserve_server.py PORT PROCESSES."""

import os
import sys

import litserve
from detector import Detector
from fastapi import Request
from starlette.datastructures import FormData


class Api(litserve.LitAPI):
    """Finds boxes on an uploaded image."""

    def setup(self, device: str) -> None:
        """Open the model in a process."""
        self.detector = Detector(os.environ["PEER_MODEL"], int(os.environ["PEER_THREADS"]))

    def decode_request(self, request: Request) -> bytes:
        """Read the upload: of a form LitServe passes the fields."""
        assert isinstance(request, FormData), "the client sends forms"
        return request["image"].file.read()

    def predict(self, data: bytes) -> list:
        """Find boxes."""
        return self.detector(data)

    def encode_response(self, boxes: list) -> dict:
        """Name them."""
        return {"boxes": boxes}


if __name__ == "__main__":
    server = litserve.LitServer(Api(), accelerator="cpu", workers_per_device=int(sys.argv[2]))
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error"
    )
