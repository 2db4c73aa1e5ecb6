"""Every recorded HTTP answer of a real Triton is given here too, in the recorded order."""

import json
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.replay import (
    Row,
    meaningful_body,
    meaningful_headers,
    read_rows,
    send,
)

pytestmark = pytest.mark.slow

# Its models are not among the recorded ones; `test_http_control.py` has a decoupled one.
ABSENT = {"infer_json_reserved_params", "err_decoupled_http", "generate_params"}
# KServe's clients look for a body where Triton has none, and people for a reason.
WITH_BODY: dict[str, dict[str, object]] = {
    "live": {"live": True},
    "query_string": {"live": True},
    "live_at_end": {"live": True},
    "model_ready": {"name": "simple", "ready": True},
    "model_ready_unknown": {"error": "Model version not ready", "ready": False},
    # Nothing of Triton's protocol: outside /v2 every error has one form.
    **{
        name: {
            "error": {
                "code": "not_found",
                "message": f"GET {path}: Not Found; see /docs for the routes",
            }
        }
        for name, path in (
            ("unknown_path", "/foo"),
            ("v3_path", "/v3"),
            ("metrics_on_http_port", "/metrics"),
        )
    },
}
REGION = "golden_shm"


@pytest.fixture(scope="module")
def shared_memory() -> Iterator[None]:
    path = Path("/dev/shm") / REGION
    path.write_bytes(bytes(mmap.PAGESIZE))
    yield
    path.unlink()


def prepare(name: str, port: int) -> None:
    """What the recorder did between the recorded requests."""
    if name == "systemshm_register_again":
        body = json.dumps({"key": f"/{REGION}", "offset": 0, "byte_size": 256}).encode()
        path = "/v2/systemsharedmemory/region/r1/register"
        assert send(port, "POST", path, body=body).status == 200
    if name == "model_config_after_override":
        tensors = [{"data_type": "TYPE_INT32", "dims": [16]}] * 2
        config = {
            "max_batch_size": 0,
            "input": [{"name": f"INPUT{n}", **tensor} for n, tensor in enumerate(tensors)],
            "output": [{"name": f"OUTPUT{n}", **tensor} for n, tensor in enumerate(tensors)],
            "instance_group": [{"name": "simple_nobatch", "kind": "KIND_CPU"}],
            "parameters": {"k": {"string_value": "v"}},
        }
        body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
        path = "/v2/repository/models/simple_nobatch/load"
        assert send(port, "POST", path, body=body).status == 200


def listed(body: object, names: set[str]) -> object:
    """Less the models in lists that were not recorded with the others."""
    if isinstance(body, tuple):
        return (body[0], listed(body[1], names))
    if isinstance(body, list):
        kept = (part for part in body if _name(part) is None or _name(part) in names)
        return [listed(part, names) for part in kept]
    return body


def _name(part: object) -> str | None:
    """Of a model in the index or the statistics."""
    if isinstance(part, list) and part and part[0][0] == "name" and part[1][0] == "version":
        return part[0][1]
    return None


def rejection(row: Row, port: int, names: set[str]) -> str | None:
    got = send(port, row.method, row.path, row.headers, row.body)
    if row.name in WITH_BODY:
        known = WITH_BODY[row.name].items() <= json.loads(got.body).items()
        return None if known and got.status == row.answer.status else f"{row.name}: {got}"
    want = row.answer
    compared = (
        ("status", got.status, want.status),
        ("headers", meaningful_headers(got), meaningful_headers(want)),
        ("body", meaningful_body(got), listed(meaningful_body(want), names)),
    )
    wrong = [f"{what}\n   got  {a}\n   want {b}" for what, a, b in compared if a != b]
    return f"{row.name}: " + "\n".join(wrong) if wrong else None


@pytest.mark.usefixtures("shared_memory")
def test_every_recorded_answer(golden_server, recordings):
    rows = [row for row in read_rows(recordings / "golden-http.jsonl") if row.name not in ABSENT]
    assert len(rows) > 100
    names = {folder.name for folder in (recordings / "models").iterdir()}
    rejections = []
    for row in rows:
        port = golden_server.port
        if row.name.startswith("metrics_") and row.name != "metrics_on_http_port":
            port = golden_server.metrics_port
        prepare(row.name, golden_server.port)
        rejections.append(rejection(row, port, names))
    told = [text for text in rejections if text is not None]
    assert told == [], "\n".join(told)
