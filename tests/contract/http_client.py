"""Infer requests over HTTP, put together by hand."""

import json
from typing import Any

from tests.contract.replay import Answer, send

Tensor = dict[str, Any]


def tensor(name: str, shape: list[int], datatype: str, **more: Any) -> Tensor:
    return {"name": name, "shape": shape, "datatype": datatype, **more}


def binary(name: str, shape: list[int], datatype: str, size: int) -> Tensor:
    return tensor(name, shape, datatype, parameters={"binary_data_size": size})


def ones(name: str) -> Tensor:
    """An input of `simple`."""
    return tensor(name, [1, 16], "INT32", data=[1] * 16)


def infer(
    port: int, model: str, document: Any, data: bytes = b"", headers: dict[str, str] | None = None
) -> Answer:
    """Post a document, and behind it binary data where there is some."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    sent = dict(headers or {})
    if data:
        sent["Inference-Header-Content-Length"] = str(len(text))
    return send(port, "POST", f"/v2/models/{model}/infer", sent, text + data)


def error(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["error"]


def parts(answer: Answer) -> tuple[dict[str, Any], bytes]:
    """The JSON of an answer, and the binary data behind it."""
    assert answer.status == 200, answer.body
    headers = {name.lower(): value for name, value in answer.headers.items()}
    size = int(headers.get("inference-header-content-length", len(answer.body)))
    return json.loads(answer.body[:size]), answer.body[size:]
