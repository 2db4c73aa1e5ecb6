"""Triton with its Python backend, by PyTriton: python pytriton_server.py PORT PROCESSES."""

import json
import os
import socket
import sys

import numpy as np
from detector import Detector
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


class Infer:
    """Finds boxes on the image of a request."""

    def __init__(self) -> None:
        self.detector = Detector(os.environ["PEER_MODEL"], int(os.environ["PEER_THREADS"]))

    def __call__(self, requests: list) -> list:
        """Answer requests."""
        answers = [json.dumps({"boxes": self.detector(r["image"].item())}) for r in requests]
        return [{"boxes": np.array([answer.encode()], object)} for answer in answers]


def free_port() -> int:
    """Find a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


if __name__ == "__main__":
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=int(sys.argv[1]),
        grpc_port=free_port(),
        metrics_port=free_port(),
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="bench",
            infer_func=[Infer() for _ in range(int(sys.argv[2]))],
            inputs=[Tensor(name="image", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="boxes", dtype=bytes, shape=(1,))],
            config=ModelConfig(batching=False),
        )
        triton.serve()
