"""The calls of gRPC that an older version answered for the record."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.upgrade.asked import INPUTS, MODELS, image_of, tensors_of_simple
from tritonclient import grpc
from tritonclient.utils import InferenceServerException


def calls(images: Path) -> dict[str, Callable[[grpc.InferenceServerClient], Any]]:
    """Name all calls."""

    def infer(model: str, *parts: bytes, **parameters: Any) -> Callable[..., Any]:
        def call(client: grpc.InferenceServerClient) -> Any:
            data = np.array(parts, object)
            tensor = grpc.InferInput(INPUTS.get(model, "images"), [len(parts)], "BYTES")
            tensor.set_data_from_numpy(data)
            return _arrays(client.infer(model, [tensor], parameters=parameters or None))

        return call

    def simple(client: grpc.InferenceServerClient, rows: int = 1) -> Any:
        inputs = []
        for each in tensors_of_simple():
            tensor = grpc.InferInput(each["name"], [rows, 4], each["datatype"])
            tensor.set_data_from_numpy(np.array([each["data"]] * rows, np.float32))
            inputs.append(tensor)
        return _arrays(client.infer("simple", inputs, request_id="42"))

    made: dict[str, Callable[..., Any]] = {
        "live": lambda client: client.is_server_live(),
        "ready": lambda client: client.is_server_ready(),
        "server": lambda client: client.get_server_metadata(as_json=True),
        "index": lambda client: client.get_model_repository_index(as_json=True),
        "log": lambda client: client.get_log_settings(as_json=True),
        "trace": lambda client: client.get_trace_settings(as_json=True),
        "regions": lambda client: client.get_system_shared_memory_status(as_json=True),
        "statistics": lambda client: client.get_inference_statistics(as_json=True),
        "infer simple": simple,
        "no such model": infer("nothing", b"no image"),
        "no such metadata": lambda client: client.get_model_metadata("nothing"),
        "bad image": infer("digits", b"no image"),
        "bad option": infer("digits", image_of("digits", images), conf=7.0),
        "options": infer("digits", image_of("digits", images), conf=0.7, max_det=2),
        "load": lambda client: client.load_model("nothing"),
        "load of broken": lambda client: client.load_model("broken"),
        "not ready": infer("broken", b"no image"),
        "region": lambda client: client.register_system_shared_memory("no", "/fovea-not-there", 4),
        "too many": infer("digits", *[image_of("digits", images)] * 9),
    }
    for model in MODELS:
        if model != "broken":
            made[f"metadata {model}"] = _model("get_model_metadata", model)
            made[f"config {model}"] = _model("get_model_config", model)
        if model not in ("broken", "simple"):
            made[f"infer {model}"] = infer(model, image_of(model, images))
    return made


def call(client: grpc.InferenceServerClient, made: Callable[..., Any]) -> Any:
    """Make a call; an error is a part of the record."""
    try:
        return made(client)
    except InferenceServerException as error:
        return {"status": error.status(), "message": error.message()}


def _model(method: str, model: str) -> Callable[..., Any]:
    return lambda client: getattr(client, method)(model, as_json=True)


def _arrays(result: grpc.InferResult) -> Any:
    response = result.get_response(as_json=True)
    response.pop("raw_output_contents", None)
    for output in response["outputs"]:
        array = result.as_numpy(output["name"])
        values = [
            each.decode() if isinstance(each, bytes) else each for each in array.ravel().tolist()
        ]
        output["data"] = values
    return json.loads(json.dumps(response))
