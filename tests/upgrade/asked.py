"""The requests that an older version answered for the record, and the form of an answer in it."""

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
"""The images of the models that are not asked for the scene."""
INPUTS = {"digits-embed": "pixel_values"}
"""The names of the inputs of the models whose input is not `images`."""
# Others are of the connection, or of the moment.
_HEADERS = ("content-type", "allow", "inference-header-content-length", "www-authenticate")
_NUMBERS = {"FP32": "<f4", "INT32": "<i4", "INT64": "<i8", "UINT8": "u1", "FP64": "<f8"}


@dataclass(frozen=True)
class Asked:
    """A request over HTTP; `name` is its key in the record."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def image_of(model: str, images: Path) -> bytes:
    """Read the image that a model is asked for."""
    return (images / IMAGES.get(model, "scene.jpg")).read_bytes()


def requests(images: Path) -> list[Asked]:
    """List all requests, those that change something last."""
    return [
        *_of_models(),
        *_of_images(images),
        *_of_tensors(images),
        *_refused(images),
        *_apis(images),
    ]


def ask(client: httpx.Client, asked: Asked) -> dict[str, Any]:
    """Send a request, and put its answer into the form of the record."""
    answer = client.request(
        asked.method, asked.path, content=asked.body or None, headers=dict(asked.headers)
    )
    headers = {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
    return {"status": answer.status_code, "headers": headers, "body": _told(answer)}


def _told(answer: httpx.Response) -> Any:
    if not answer.content:
        return None
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if "inference-header-content-length" in answer.headers:
        return _binary(answer)
    if kind.startswith("image/"):
        with Image.open(io.BytesIO(answer.content)) as image:
            return {"format": image.format, "size": list(image.size), "mode": image.mode}
    if kind.endswith("json"):
        return answer.json()
    return {"text": answer.text} if len(answer.content) < 500 else {"text": "..."}


def _binary(answer: httpx.Response) -> Any:
    """Read the numbers and texts behind the header of an answer of v2."""
    length = int(answer.headers["inference-header-content-length"])
    document = json.loads(answer.content[:length])
    rest = answer.content[length:]
    for output in document["outputs"]:
        size = output["parameters"]["binary_data_size"]
        output["data"] = _decoded(rest[:size], output["datatype"])
        rest = rest[size:]
    return document


def _decoded(data: bytes, datatype: str) -> list[Any]:
    if datatype == "BYTES":
        texts = []
        while data:
            length = int.from_bytes(data[:4], "little")
            texts.append(data[4 : 4 + length].decode())
            data = data[4 + length :]
        return texts
    numbers: list[Any] = np.frombuffer(data, _NUMBERS[datatype]).tolist()
    return numbers


def _json(document: object) -> tuple[bytes, dict[str, str]]:
    return json.dumps(document).encode(), {"content-type": "application/json"}


def form(*images: bytes, field: str = "image") -> tuple[bytes, dict[str, str]]:
    """Make a form whose boundary is always the same."""
    parts = [
        f'--rim\r\nContent-Disposition: form-data; name="{field}"; filename="{number}.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n".encode()
        + image
        + b"\r\n"
        for number, image in enumerate(images)
    ]
    body = b"".join(parts) + b"--rim--\r\n"
    return body, {"content-type": "multipart/form-data; boundary=rim"}


def _of_models() -> list[Asked]:
    get = [
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
        get += [f"/v1/models/{model}", f"/v1/models/{model}/ready"]
        get += [f"/v2/models/{model}", f"/v2/models/{model}/ready", f"/v2/models/{model}/config"]
    for model in ("digits", "simple", "broken"):
        get += [f"/v1/models/{model}/statistics", f"/v2/models/{model}/stats"]
    index = Asked("POST /v2/repository/index", "POST", "/v2/repository/index")
    ready, headers = _json({"ready": True})
    return [
        *(Asked(f"GET {path}", "GET", path) for path in get),
        index,
        Asked("index of what is ready", "POST", index.path, ready, headers),
    ]


def _of_images(images: Path) -> list[Asked]:
    scene, other = ((images / name).read_bytes() for name in ("scene.jpg", "other.jpg"))
    asked = []
    for model in MODELS:
        path, image = f"/v1/models/{model}/predict", image_of(model, images)
        asked.append(Asked(f"predict {model}", "POST", path, image))
    options = {
        "digits": (
            *("conf=0.8", "iou=0.1", "classes=5,9", "max_det=2", "agnostic=true&iou=0.05"),
            *("tile=160&overlap=0.3", "tile=2x1", "track=bytetrack&stream_id=one&frame=1"),
        ),
        "digits-classify": ("top_k=2",),
        "digits-segment": ("mask=polygon&max_det=1", "mask=png&max_det=1", "mask=none"),
        "digits-embed": ("vector=list", "normalise=false", "labels=a+red+seven,a+blue+four"),
    }
    for model, queries in options.items():
        for query in queries:
            path = f"/v1/models/{model}/predict?{query}"
            asked.append(Asked(f"{model}?{query}", "POST", path, image_of(model, images)))
    digits = "/v1/models/digits"
    two = [{"data": base64.b64encode(each).decode()} for each in (scene, other)]
    embed = "/v1/models/digits-embed"
    texts = {"text": ["a red seven", "a blue four"]}
    seven = image_of("digits-embed", images)
    asked += [
        Asked("version 2", "POST", f"{digits}/versions/2/predict", scene),
        # Other defaults of conf and iou would find other objects on these.
        Asked("default conf", "POST", f"{digits}/predict", (images / "plate.jpg").read_bytes()),
        Asked(
            "default iou", "POST", f"{digits}/predict?conf=0.1", (images / "digit.jpg").read_bytes()
        ),
        Asked("form of two", "POST", f"{digits}/predict?conf=0.5", *form(scene, other)),
        Asked("predict/form", "POST", f"{digits}/predict/form", *form(scene, other)),
        Asked("json of two", "POST", f"{digits}/predict", *_json({"images": two, "max_det": 3})),
        Asked("predict/json", "POST", f"{digits}/predict/json", *_json({"images": two[:1]})),
        Asked("one of two is bad", "POST", f"{digits}/predict", *form(scene, b"no image")),
        Asked("png", "POST", f"{digits}/predict", scene, {"accept": "image/png"}),
        Asked("jpeg", "POST", f"{digits}/annotate", scene, {"accept": "image/jpeg"}),
        Asked("texts", "POST", f"{embed}/embed", *_json(texts)),
        Asked("search", "POST", f"{embed}/search?k=3", seven),
        Asked("search with pictures", "POST", f"{embed}/search?k=1&thumbnails=true", seven),
        Asked("search by words", "GET", f"{embed}/search?text=a+red+seven&k=2"),
        Asked("an id", "POST", f"{digits}/predict?max_det=1", scene, {"x-request-id": "mine"}),
    ]
    return asked


def _bytes_request(
    model: str, *images: bytes, **parameters: object
) -> tuple[bytes, dict[str, str]]:
    """Make a request of v2 whose tensor holds encoded images."""
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


def tensors_of_simple() -> list[dict[str, Any]]:
    """Make the inputs of the model of tensors."""
    return [
        {"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]},
        {"name": "INPUT1", "shape": [1, 4], "datatype": "FP32", "data": [10, 20, 30, 40]},
    ]


def _of_tensors(images: Path) -> list[Asked]:
    scene = (images / "scene.jpg").read_bytes()
    simple, inputs = "/v2/models/simple/infer", tensors_of_simple()
    whole = {"inputs": inputs, "id": "42"}
    chosen = {**whole, "outputs": [{"name": "SUM"}]}
    binary = {**whole, "outputs": [{"name": "SUM", "parameters": {"binary_data": True}}]}
    classified = {**whole, "outputs": [{"name": "SUM", "parameters": {"classification": 2}}]}
    asked = [
        Asked("infer simple", "POST", simple, *_json(whole)),
        Asked("infer simple, version", "POST", "/v2/models/simple/versions/1/infer", *_json(whole)),
        Asked("infer simple, one output", "POST", simple, *_json(chosen)),
        Asked("infer simple, binary", "POST", simple, *_json(binary)),
        Asked("infer simple, classified", "POST", simple, *_json(classified)),
        Asked(
            "infer the body itself",
            "POST",
            "/v2/models/digits/infer",
            scene,
            {"inference-header-content-length": "0"},
        ),
        Asked(
            "infer with options",
            "POST",
            "/v2/models/digits/infer",
            *_bytes_request("digits", scene, scene, conf=0.7, max_det=2),
        ),
    ]
    for model in MODELS[:-2]:
        image = image_of(model, images)
        path = f"/v2/models/{model}/infer"
        asked.append(Asked(f"infer {model}", "POST", path, *_bytes_request(model, image)))
    return asked


def _refused(images: Path) -> list[Asked]:
    """List what is refused: each name begins with the code of its error, where v1 tells it."""
    scene = (images / "scene.jpg").read_bytes()
    large = io.BytesIO()
    Image.new("L", (1100, 1000)).save(large, "PNG")
    digits, v2 = "/v1/models/digits/predict", "/v2/models"
    many = form(*[scene] * 9)
    url, wrong = _json({"images": [{"url": "http://127.0.0.1:1/x.jpg"}]}), _json({"images": []})
    stream = _json({"id": "porch", "source": "rtsp://127.0.0.1:1/x", "model": "digits-pose"})
    far = {"x-forwarded-for": "192.0.2.1"}
    page = {"origin": "https://elsewhere.example"}
    late = {"x-request-timeout-ms": "0.001"}
    inputs = tensors_of_simple()
    shape = [{**inputs[0], "shape": [1, 3]}, inputs[1]]
    kind = [{**inputs[0], "datatype": "INT32"}, inputs[1]]
    region = _json({"key": "/fovea-not-there", "offset": 0, "byte_size": 4})
    old = "track=bytetrack&stream_id=one&frame=1"
    return [
        Asked("not_found: model", "POST", "/v1/models/nothing/predict", scene),
        Asked("not_found: version", "POST", "/v1/models/digits/versions/9/predict", scene),
        Asked("not_found: route", "GET", "/v1/nothing"),
        Asked("not_found: index", "POST", "/v1/models/digits-embed/search?index=no", scene),
        Asked("not_found: stream", "GET", "/v1/streams/nothing"),
        Asked("invalid_image", "POST", digits, b"no image"),
        Asked("invalid_image: cut off", "POST", digits, scene[:2000]),
        Asked("image_too_large", "POST", digits, large.getvalue()),
        Asked("invalid_option: unknown", "POST", f"{digits}?confidence=1", scene),
        Asked("invalid_option: range", "POST", f"{digits}?conf=7", scene),
        Asked("invalid_option: task", "POST", f"{digits}?top_k=3", scene),
        Asked("invalid_option: class", "POST", f"{digits}?classes=cat", scene),
        Asked("invalid_option: k", "POST", "/v1/models/digits-embed/search?k=0", scene),
        Asked("invalid_option: no vectors", "POST", "/v1/models/digits/search", scene),
        Asked("invalid_request: no body", "POST", digits),
        Asked("invalid_request: no images", "POST", digits, *wrong),
        Asked(
            "invalid_request: no JSON", "POST", digits, b"{", {"content-type": "application/json"}
        ),
        Asked("invalid_request: tensors", "POST", "/v1/models/simple/predict", scene),
        Asked("method_not_allowed", "DELETE", "/v1/models/digits"),
        Asked("body_too_large", "POST", digits, bytes(3_000_001)),
        Asked("fetch_refused", "POST", digits, *url),
        Asked("invalid_request: too many", "POST", digits, *many),
        Asked("deadline_exceeded", "POST", digits, scene, late),
        Asked("restricted", "POST", "/v2/repository/models/digits/unload", b"", far),
        Asked("restricted: v1", "POST", "/v1/models/digits/promote", _json({"version": 1})[0], far),
        Asked("foreign_request", "POST", digits, scene, page),
        Asked("foreign_request: host", "GET", "/v1/models", b"", {"host": "evil.example"}),
        Asked("model_not_ready", "POST", "/v1/models/broken/predict", scene),
        Asked("already_exists", "POST", "/v1/streams", *stream),
        Asked("out_of_order", "POST", f"{digits}?{old}", scene),
        Asked("v2: model", "GET", f"{v2}/nothing"),
        Asked("v2: version", "GET", f"{v2}/digits/versions/9"),
        Asked("v2: route", "GET", "/v2/nothing"),
        Asked("v2: method", "DELETE", f"{v2}/digits"),
        Asked("v2: not ready", "POST", f"{v2}/broken/infer", *_json({"inputs": inputs})),
        Asked("v2: no JSON", "POST", f"{v2}/simple/infer", b"{"),
        Asked("v2: no inputs", "POST", f"{v2}/simple/infer", *_json({})),
        Asked("v2: one input", "POST", f"{v2}/simple/infer", *_json({"inputs": inputs[:1]})),
        Asked("v2: shape", "POST", f"{v2}/simple/infer", *_json({"inputs": shape})),
        Asked("v2: datatype", "POST", f"{v2}/simple/infer", *_json({"inputs": kind})),
        Asked("v2: bad image", "POST", f"{v2}/digits/infer", *_bytes_request("digits", b"no")),
        Asked(
            "v2: bad option", "POST", f"{v2}/digits/infer", *_bytes_request("digits", scene, conf=7)
        ),
        Asked("v2: too large", "POST", f"{v2}/digits/infer", bytes(3_000_001)),
        Asked("v2: load", "POST", "/v2/repository/models/nothing/load"),
        Asked("v2: load of broken", "POST", "/v2/repository/models/broken/load"),
        Asked("v2: unload", "POST", "/v2/repository/models/nothing/unload"),
        Asked("v2: region", "POST", "/v2/systemsharedmemory/region/no/register", *region),
        Asked("v2: far", "POST", "/v2/logging", b"{}", far),
        Asked("v2: foreign", "POST", f"{v2}/simple/infer", _json({"inputs": inputs})[0], page),
    ]


def _apis(images: Path) -> list[Asked]:
    scene = (images / "scene.jpg").read_bytes()
    encoded = base64.b64encode(scene).decode()
    roboflow = {"model_id": "digits/1", "image": {"type": "base64", "value": encoded}}
    return [
        Asked("deepstack", "POST", "/v1/vision/detection", *form(scene)),
        Asked("roboflow", "POST", "/infer/object_detection", *_json(roboflow)),
    ]


def allowed(url: str, metrics: str, keys: Mapping[str, str], scene: bytes) -> dict[str, Any]:
    """Ask with each key what some keys may and others not; the status and the code of each.

    The keys with a quota or a rate of few images are asked elsewhere.
    """
    tensors = _json({"inputs": tensors_of_simple()})[0]
    wanted = [
        ("POST", "/v1/models/digits/predict", scene),
        ("POST", "/v1/models/digits-classify/predict", scene),
        ("POST", "/v2/models/simple/infer", tensors),
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
    with httpx.Client(base_url=url, timeout=60) as client:
        found: dict[str, Any] = {}
        for name, key in {**keys, "unknown": "fov_unknown", "none": ""}.items():
            if name in ("counted", "slow"):
                continue
            headers = {"x-api-key": key} if key else {}
            told = {}
            for method, path, body in wanted:
                answer = client.request(method, path, content=body or None, headers=headers)
                what = f"{method} {path.removeprefix(metrics)}"
                told[what] = [answer.status_code, _code(answer)]
            listed = client.get("/v1/models", headers=headers).json()
            told["models"] = sorted(each["name"] for each in listed.get("models", ()))
            found[name] = told
    return found


def _code(answer: httpx.Response) -> str | None:
    if answer.is_success or "json" not in answer.headers.get("content-type", ""):
        return None
    error = answer.json()["error"]
    return error["code"] if isinstance(error, dict) else None
