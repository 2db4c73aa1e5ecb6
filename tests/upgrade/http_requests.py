"""HTTP requests of the record, and the conversion of their responses to JSON."""

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

MODELS = (
    *("digits", "digits-classify", "digits-embed", "digits-obb", "digits-pose"),
    *("digits-segment", "plates-read", "cards", "simple", "broken"),
)
IMAGES = {
    "digits-classify": "digit.jpg",
    "digits-embed": "seven.jpg",
    "plates-read": "plate.jpg",
}
"""The images of the models that do not get the scene."""
INPUTS = {"digits-embed": "pixel_values"}
"""The names of inputs other than `images`."""
SIMPLE: list[dict[str, Any]] = [
    {"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]},
    {"name": "INPUT1", "shape": [1, 4], "datatype": "FP32", "data": [10, 20, 30, 40]},
]
"""The inputs of the model `simple`."""
# Other headers belong to the connection or the moment.
_HEADERS = ("content-type", "allow", "inference-header-content-length", "www-authenticate")
_DTYPES = {"FP32": "<f4", "INT32": "<i4", "INT64": "<i8", "UINT8": "u1", "FP64": "<f8"}


@dataclass(frozen=True)
class Request:
    """An HTTP request; `name` is its key in the record."""

    name: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"


def read_image(model: str, images: Path) -> bytes:
    return (images / IMAGES.get(model, "scene.jpg")).read_bytes()


def list_requests(images: Path) -> list[Request]:
    """List all requests. The last ones change the server."""
    return [*_read(), *_predict(images), *_infer(images), *_rejected(images), *_apis(images)]


def send(client: httpx.Client, request: Request) -> dict[str, Any]:
    """Send a request; return the response in the form of the record."""
    response = client.request(
        request.method, request.path, content=request.body or None, headers=dict(request.headers)
    )
    headers = {name: response.headers[name] for name in _HEADERS if name in response.headers}
    return {"status": response.status_code, "headers": headers, "body": _parse(response)}


def _parse(response: httpx.Response) -> Any:
    if not response.content:
        return None
    media_type = response.headers.get("content-type", "").partition(";")[0]
    if "inference-header-content-length" in response.headers:
        return _parse_binary(response)
    if media_type.startswith("image/"):
        with Image.open(io.BytesIO(response.content)) as image:
            return {"format": image.format, "size": list(image.size), "mode": image.mode}
    if media_type.endswith("json"):
        return response.json()
    return {"text": response.text} if len(response.content) < 500 else {"text": "..."}


def _parse_binary(response: httpx.Response) -> Any:
    """Put the binary tensors of a v2 response into its document."""
    length = int(response.headers["inference-header-content-length"])
    document = json.loads(response.content[:length])
    rest = response.content[length:]
    for output in document["outputs"]:
        size = output["parameters"]["binary_data_size"]
        output["data"] = _decode(rest[:size], output["datatype"])
        rest = rest[size:]
    return document


def _decode(data: bytes, datatype: str) -> list[Any]:
    if datatype != "BYTES":
        numbers: list[Any] = np.frombuffer(data, _DTYPES[datatype]).tolist()
        return numbers
    texts = []
    while data:
        length = int.from_bytes(data[:4], "little")
        texts.append(data[4 : 4 + length].decode())
        data = data[4 + length :]
    return texts


def _json(document: object) -> tuple[bytes, dict[str, str]]:
    return json.dumps(document).encode(), {"content-type": "application/json"}


def _form(*images: bytes) -> tuple[bytes, dict[str, str]]:
    """Make a form that always has the same boundary."""
    parts = [
        f'--rim\r\nContent-Disposition: form-data; name="image"; filename="{number}.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n".encode()
        + image
        + b"\r\n"
        for number, image in enumerate(images)
    ]
    body = b"".join(parts) + b"--rim--\r\n"
    return body, {"content-type": "multipart/form-data; boundary=rim"}


def _tensor(model: str, *images: bytes, **parameters: object) -> tuple[bytes, dict[str, str]]:
    """Make a v2 request with a tensor of encoded images."""
    data = b"".join(len(each).to_bytes(4, "little") + each for each in images)
    tensor = {
        "name": INPUTS.get(model, "images"),
        "shape": [len(images)],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(data)},
    }
    parameters = {"binary_data_output": True, **parameters}
    head = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    return head + data, {"inference-header-content-length": str(len(head))}


def _read() -> list[Request]:
    paths = [
        *("/v1/models", "/v1/health/live", "/v1/health/ready", "/v1/keys/self"),
        *("/v1/models/digits/versions/2", "/v1/models/digits/history", "/v1/models/digits/drift"),
        *("/v1/models/digits/history?limit=1", "/v1/models/digits/shadow"),
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/logging", "/v2/trace/setting"),
        *("/v2/models/stats", "/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status"),
        *("/v2/models/digits/versions/1", "/v2/models/digits/versions/1/config"),
        *("/v2/models/digits/versions/1/stats", "/v2/models/digits/trace/setting"),
        *("/v2/models/digits/versions/1/ready", "/v1/models/digits/versions/9"),
    ]
    for model in MODELS:
        paths += [f"/v1/models/{model}", f"/v1/models/{model}/ready"]
        paths += [f"/v2/models/{model}", f"/v2/models/{model}/ready", f"/v2/models/{model}/config"]
    for model in ("digits", "simple", "broken"):
        paths += [f"/v1/models/{model}/statistics", f"/v2/models/{model}/stats"]
    index = "/v2/repository/index"
    return [
        *(Request(f"GET {path}", path, method="GET") for path in paths),
        Request(f"POST {index}", index),
        Request("index of what is ready", index, *_json({"ready": True})),
    ]


def _predict(images: Path) -> list[Request]:
    scene, other, plate, digit, seven = (
        (images / f"{name}.jpg").read_bytes()
        for name in ("scene", "other", "plate", "digit", "seven")
    )
    queries = {
        "digits": (
            *("conf=0.8", "iou=0.1", "classes=5,9", "max_det=2", "agnostic=true&iou=0.05"),
            *("tile=160&overlap=0.3", "tile=2x1", "track=bytetrack&stream_id=one&frame=1"),
        ),
        "digits-classify": ("top_k=2",),
        "digits-segment": ("mask=polygon&max_det=1", "mask=png&max_det=1", "mask=none"),
        "digits-embed": ("vector=list", "normalise=false", "labels=a+red+seven,a+blue+four"),
    }
    digits, embed = "/v1/models/digits", "/v1/models/digits-embed"
    two = [{"data": base64.b64encode(each).decode()} for each in (scene, other)]
    texts = {"text": ["a red seven", "a blue four"]}
    return [
        *(
            Request(f"predict {model}", f"/v1/models/{model}/predict", read_image(model, images))
            for model in MODELS
        ),
        *(
            Request(
                f"{model}?{query}", f"/v1/models/{model}/predict?{query}", read_image(model, images)
            )
            for model in queries
            for query in queries[model]
        ),
        Request("version 2", f"{digits}/versions/2/predict", scene),
        # Other defaults of conf and iou would find other objects in these images.
        Request("default conf", f"{digits}/predict", plate),
        Request("default iou", f"{digits}/predict?conf=0.1", digit),
        Request("form of two", f"{digits}/predict?conf=0.5", *_form(scene, other)),
        Request("predict/form", f"{digits}/predict/form", *_form(scene, other)),
        Request("json of two", f"{digits}/predict", *_json({"images": two, "max_det": 3})),
        Request("predict/json", f"{digits}/predict/json", *_json({"images": two[:1]})),
        Request("one of two is bad", f"{digits}/predict", *_form(scene, b"no image")),
        Request("png", f"{digits}/predict", scene, {"accept": "image/png"}),
        Request("jpeg", f"{digits}/annotate", scene, {"accept": "image/jpeg"}),
        Request("texts", f"{embed}/embed", *_json(texts)),
        Request("search", f"{embed}/search?k=3", seven),
        Request("search with pictures", f"{embed}/search?k=1&thumbnails=true", seven),
        Request("search by words", f"{embed}/search?text=a+red+seven&k=2", method="GET"),
        Request("an id", f"{digits}/predict?max_det=1", scene, {"x-request-id": "mine"}),
    ]


def _infer(images: Path) -> list[Request]:
    scene = (images / "scene.jpg").read_bytes()
    simple, digits = "/v2/models/simple", "/v2/models/digits/infer"
    whole = {"inputs": SIMPLE, "id": "42"}
    outputs: dict[str, dict[str, Any]] = {
        "one output": {},
        "binary": {"parameters": {"binary_data": True}},
        "classified": {"parameters": {"classification": 2}},
    }
    return [
        Request("infer simple", f"{simple}/infer", *_json(whole)),
        Request("infer simple, version", f"{simple}/versions/1/infer", *_json(whole)),
        *(
            Request(
                f"infer simple, {name}",
                f"{simple}/infer",
                *_json({**whole, "outputs": [{"name": "SUM", **output}]}),
            )
            for name, output in outputs.items()
        ),
        Request("infer the body itself", digits, scene, {"inference-header-content-length": "0"}),
        Request(
            "infer with options", digits, *_tensor("digits", scene, scene, conf=0.7, max_det=2)
        ),
        *(
            Request(
                f"infer {model}",
                f"/v2/models/{model}/infer",
                *_tensor(model, read_image(model, images)),
            )
            for model in MODELS[:-2]
        ),
    ]


def _rejected(images: Path) -> list[Request]:
    """List rejected requests. The name of a v1 request begins with the error code."""
    scene = (images / "scene.jpg").read_bytes()
    large = io.BytesIO()
    Image.new("L", (1100, 1000)).save(large, "PNG")
    digits, v2 = "/v1/models/digits/predict", "/v2/models"
    simple, infer = f"{v2}/simple/infer", f"{v2}/digits/infer"
    url = {"images": [{"url": "http://127.0.0.1:1/x.jpg"}]}
    stream = {"id": "porch", "source": "rtsp://127.0.0.1:1/x", "model": "digits-pose"}
    far = {"x-forwarded-for": "192.0.2.1"}
    page = {"origin": "https://elsewhere.example"}
    late = {"x-request-timeout-ms": "0.001"}
    as_json = {"content-type": "application/json"}
    tensors = _json({"inputs": SIMPLE})
    shape = {"inputs": [{**SIMPLE[0], "shape": [1, 3]}, SIMPLE[1]]}
    kind = {"inputs": [{**SIMPLE[0], "datatype": "INT32"}, SIMPLE[1]]}
    region = {"key": "/fovea-not-there", "offset": 0, "byte_size": 4}
    old = "track=bytetrack&stream_id=one&frame=1"
    return [
        Request("not_found: model", "/v1/models/nothing/predict", scene),
        Request("not_found: version", "/v1/models/digits/versions/9/predict", scene),
        Request("not_found: route", "/v1/nothing", method="GET"),
        Request("not_found: index", "/v1/models/digits-embed/search?index=no", scene),
        Request("not_found: stream", "/v1/streams/nothing", method="GET"),
        Request("invalid_image", digits, b"no image"),
        Request("invalid_image: cut off", digits, scene[:2000]),
        Request("image_too_large", digits, large.getvalue()),
        Request("invalid_option: unknown", f"{digits}?confidence=1", scene),
        Request("invalid_option: range", f"{digits}?conf=7", scene),
        Request("invalid_option: task", f"{digits}?top_k=3", scene),
        Request("invalid_option: class", f"{digits}?classes=cat", scene),
        Request("invalid_option: k", "/v1/models/digits-embed/search?k=0", scene),
        Request("invalid_option: no vectors", "/v1/models/digits/search", scene),
        Request("invalid_request: no body", digits),
        Request("invalid_request: no images", digits, *_json({"images": []})),
        Request("invalid_request: no JSON", digits, b"{", as_json),
        Request("invalid_request: tensors", "/v1/models/simple/predict", scene),
        Request("method_not_allowed", "/v1/models/digits", method="DELETE"),
        Request("body_too_large", digits, bytes(3_000_001)),
        Request("fetch_refused", digits, *_json(url)),
        Request("invalid_request: too many", digits, *_form(*[scene] * 9)),
        Request("deadline_exceeded", digits, scene, late),
        Request("restricted", "/v2/repository/models/digits/unload", headers=far),
        Request("restricted: v1", "/v1/models/digits/promote", b'{"version": 1}', far),
        Request("foreign_request", digits, scene, page),
        Request(
            "foreign_request: host", "/v1/models", headers={"host": "evil.example"}, method="GET"
        ),
        Request("model_not_ready", "/v1/models/broken/predict", scene),
        Request("already_exists", "/v1/streams", *_json(stream)),
        Request("out_of_order", f"{digits}?{old}", scene),
        Request("v2: model", f"{v2}/nothing", method="GET"),
        Request("v2: version", f"{v2}/digits/versions/9", method="GET"),
        Request("v2: route", "/v2/nothing", method="GET"),
        Request("v2: method", f"{v2}/digits", method="DELETE"),
        Request("v2: not ready", f"{v2}/broken/infer", *tensors),
        Request("v2: no JSON", simple, b"{"),
        Request("v2: no inputs", simple, *_json({})),
        Request("v2: one input", simple, *_json({"inputs": SIMPLE[:1]})),
        Request("v2: shape", simple, *_json(shape)),
        Request("v2: datatype", simple, *_json(kind)),
        Request("v2: bad image", infer, *_tensor("digits", b"no")),
        Request("v2: bad option", infer, *_tensor("digits", scene, conf=7)),
        Request("v2: too large", infer, bytes(3_000_001)),
        Request("v2: load", "/v2/repository/models/nothing/load"),
        Request("v2: load of broken", "/v2/repository/models/broken/load"),
        Request("v2: unload", "/v2/repository/models/nothing/unload"),
        Request("v2: region", "/v2/systemsharedmemory/region/no/register", *_json(region)),
        Request("v2: far", "/v2/logging", b"{}", far),
        Request("v2: foreign", simple, tensors[0], page),
    ]


def _apis(images: Path) -> list[Request]:
    scene = (images / "scene.jpg").read_bytes()
    encoded = base64.b64encode(scene).decode()
    roboflow = {"model_id": "digits/1", "image": {"type": "base64", "value": encoded}}
    return [
        Request("deepstack", "/v1/vision/detection", *_form(scene)),
        Request("roboflow", "/infer/object_detection", *_json(roboflow)),
    ]


def list_permissions(
    url: str, metrics: str, keys: Mapping[str, str], scene: bytes
) -> dict[str, Any]:
    """Send requests with each key; return their statuses and codes, and the models it lists.

    Other tests use up the keys "counted" and "slow".
    """
    requests = [
        ("POST", "/v1/models/digits/predict", scene),
        ("POST", "/v1/models/digits-classify/predict", scene),
        ("POST", "/v2/models/simple/infer", _json({"inputs": SIMPLE})[0]),
        ("GET", "/v1/models/digits", b""),
        ("GET", "/v1/models/plates-read", b""),
        ("GET", "/v1/keys/self", b""),
        ("GET", "/v2/models/digits/config", b""),
        ("POST", "/v2/repository/index", b""),
        ("GET", "/v2/logging", b""),
        ("POST", "/v2/logging", b"{}"),
        ("POST", "/v2/repository/models/digits/load", b""),
        ("GET", "/v2/systemsharedmemory/status", b""),
        ("GET", "/v1/health/ready", b""),
        ("GET", f"{metrics}/metrics", b""),
    ]
    permissions: dict[str, Any] = {}
    with httpx.Client(base_url=url, timeout=60) as client:
        for name, key in {**keys, "unknown": "fov_unknown", "none": ""}.items():
            if name in ("counted", "slow"):
                continue
            headers = {"x-api-key": key} if key else {}
            found = permissions[name] = {}
            for method, path, body in requests:
                response = client.request(method, path, content=body or None, headers=headers)
                place = f"{method} {path.removeprefix(metrics)}"
                found[place] = [response.status_code, _read_code(response)]
            models = client.get("/v1/models", headers=headers).json().get("models", ())
            found["models"] = sorted(each["name"] for each in models)
    return permissions


def _read_code(response: httpx.Response) -> str | None:
    if response.is_success or "json" not in response.headers.get("content-type", ""):
        return None
    error = response.json()["error"]
    return error["code"] if isinstance(error, dict) else None
