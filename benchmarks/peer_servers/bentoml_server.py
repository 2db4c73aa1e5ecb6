"""BentoML: bentoml serve bentoml_server:Peer, with a process a core."""

import os
from pathlib import Path

import bentoml
from detector import Detector


@bentoml.service(workers=int(os.environ["PEER_PROCESSES"]), traffic={"timeout": 120})
class Peer:
    """Finds boxes on an uploaded image."""

    def __init__(self) -> None:
        self.detector = Detector(os.environ["PEER_MODEL"], int(os.environ["PEER_THREADS"]))

    @bentoml.api
    def predict(self, image: Path) -> dict:
        """Find boxes."""
        return {"boxes": self.detector(image.read_bytes())}
