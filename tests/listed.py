"""The outputs for images that a server lists, beside those that it answers."""

import json

import httpx


def check_listed(server, model, answer):
    """Compare an answer of tritonclient with the model's metadata and with its configuration."""
    told = answer.get_response()
    outputs = told["outputs"] if isinstance(told, dict) else told.outputs
    if not isinstance(told, dict):
        outputs = [{n: getattr(o, n) for n in ("name", "datatype", "shape")} for o in outputs]
    url = f"{server.url}/v2/models/{model}"
    listed = httpx.get(url).json()["image_outputs"]
    text = httpx.get(f"{url}/config").json()["parameters"]["image_outputs"]["string_value"]
    assert json.loads(text) == listed
    for have, want in zip(outputs, listed, strict=True):
        assert (have["name"], have["datatype"]) == (want["name"], want["datatype"])
        assert len(have["shape"]) == len(want["shape"])
        assert all(m in (n, -1) for n, m in zip(have["shape"], want["shape"], strict=True))
