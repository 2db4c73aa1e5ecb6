"""The least that can answer `simple` over v2 with binary tensors: no framework, no checks.

Other servers are measured as a ratio to it (`benchmarks/triton.py`). Started with an open socket:

    python benchmarks/bare_asgi.py FD
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import numpy as np
import orjson
import uvicorn


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Add and subtract two int32[16]."""
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    body = b"".join(chunks)
    headers = dict(scope["headers"])
    split = int(headers[b"inference-header-content-length"])
    request = orjson.loads(body[:split])
    arrays, offset = [], split
    for tensor in request["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        arrays.append(np.frombuffer(body, np.int32, size // 4, offset))
        offset += size
    first, second = arrays
    outputs = {"OUTPUT0": first + second, "OUTPUT1": first - second}
    described = [
        {
            "name": name,
            "datatype": "INT32",
            "shape": request["inputs"][0]["shape"],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in outputs.items()
    ]
    head = orjson.dumps({"model_name": "simple", "model_version": "1", "outputs": described})
    answer = b"".join([head, *(array.tobytes() for array in outputs.values())])
    answered = [
        (b"content-type", b"application/octet-stream"),
        (b"inference-header-content-length", str(len(head)).encode()),
        (b"content-length", str(len(answer)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": answered})
    await send({"type": "http.response.body", "body": answer})


if __name__ == "__main__":
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="error"
    )
    uvicorn.Server(config).run([socket.socket(fileno=int(sys.argv[1]))])
