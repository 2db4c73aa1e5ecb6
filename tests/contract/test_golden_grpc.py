"""Every recorded gRPC answer of a real Triton is given here too."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from tritonclient.grpc import service_pb2 as messages

pytestmark = pytest.mark.slow

# Its model is not among the recorded ones.
ABSENT_ROW = "stream_decoupled"
ABSENT_MODELS = {"parameter", "repeat_int32"}
# Triton ran Python doubles of the models.
VOLATILE = {"platform", "backend", "default_model_filename"}


@pytest.fixture(scope="module")
def channel(golden_server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{golden_server.grpc_port}") as channel:
        yield channel


def ask(channel: grpc.Channel, rpc: str, request: dict[str, Any]) -> dict[str, Any]:
    """Code, details and response, as the recordings have them."""
    answer_type = getattr(messages, f"{rpc}Response")
    call = channel.unary_unary(
        f"/inference.GRPCInferenceService/{rpc}",
        lambda message: message.SerializeToString(),
        answer_type.FromString,
    )
    try:
        answer = call(ParseDict(request, getattr(messages, f"{rpc}Request")()), timeout=30)
    except grpc.RpcError as error:
        return {"code": error.code().name, "details": error.details()}
    return {"code": "OK", "response": MessageToDict(answer, preserving_proto_field_name=True)}


def steady(value: Any) -> Any:
    """Less what is volatile, and the models that are not there."""
    if isinstance(value, dict):
        return {name: steady(part) for name, part in value.items() if name not in VOLATILE}
    if isinstance(value, list):
        return [
            steady(part)
            for part in value
            if not (isinstance(part, dict) and part.get("name") in ABSENT_MODELS)
        ]
    return value


def test_every_recorded_answer(channel, recordings):
    lines = (recordings / "golden-grpc.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["name"] != ABSENT_ROW]
    calls = [row for row in rows if "/" not in row["rpc"]]
    assert len(calls) >= 28
    rejections = []
    for row in calls:
        wanted = {key: row[key] for key in ("code", "details", "response") if key in row}
        got = ask(channel, row["rpc"], row["request"])
        if steady(got) != steady(wanted):
            rejections.append(f"{row['name']}\n   got  {got}\n   want {wanted}")
    assert rejections == [], "\n".join(rejections)


def test_the_recorded_health(channel, recordings):
    lines = (recordings / "golden-grpc.jsonl").read_text().splitlines()
    (row,) = (row for row in map(json.loads, lines) if "/" in row["rpc"])
    assert channel.unary_unary(f"/{row['rpc']}")(b"").hex() == row["response_hex"]
    named = b"\x0a\x04some"
    assert channel.unary_unary(f"/{row['rpc']}")(named).hex() == row["response_hex"]
