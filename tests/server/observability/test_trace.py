"""Settings of tracing, which requests they choose, and the file that those leave."""

import json

import pytest

from fovea_preprocess.errors import (
    InvalidOption,
    InvalidRequest,
    MalformedJson,
    NotFound,
    Unsupported,
)
from fovea_server.observability.model_statistics import StageTimes
from fovea_server.traffic.triton_trace import TraceSettings

DEFAULT = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
NAMES = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
]


class Models:
    """Two of them."""

    def find(self, name: str, version: int | None = None) -> object:
        if name not in ("simple", "other"):
            raise NotFound(name)
        return object()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "trace.json"


@pytest.fixture
def settings(file):
    return TraceSettings([f"triton,file={file}"], Models().find)


def run(settings: TraceSettings, model: str = "simple", times: int = 1) -> int:
    """Let requests come and be answered; how many were traced."""
    chosen = 0
    for number in range(times):
        trace = settings.sample(model, 1, f"r{number}")
        if trace is not None:
            trace.record_times(StageTimes(1, 2, 3, 4, 5))
            trace.save()
            chosen += 1
    return chosen


def test_settings_are_triton_s_to_begin_with():
    settings = TraceSettings([], Models().find)
    assert settings.get() == DEFAULT
    assert settings.get("simple") == DEFAULT
    assert settings.update(None, {"trace_rate": "500"}) == DEFAULT | {"trace_rate": "500"}
    assert settings.update(None, {"foo": "abc"}) == DEFAULT | {"trace_rate": "500"}
    assert run(settings, times=2000) == 0


def test_a_model_goes_its_own_way_where_it_says_so(settings):
    settings.update("simple", {"trace_rate": "7", "trace_count": "3"})
    settings.update(None, {"trace_rate": "5", "log_frequency": "2"})
    found = settings.get("simple")
    assert (found["trace_rate"], found["trace_count"], found["log_frequency"]) == ("7", "3", "2")
    assert settings.get("other")["trace_rate"] == "5"
    assert settings.update("simple", {"trace_rate": None})["trace_rate"] == "5"
    assert settings.update(None, {"trace_rate": None})["trace_rate"] == "1000"


def test_levels_are_a_list(settings):
    update = settings.update
    assert update(None, {"trace_level": ["TENSORS", "TIMESTAMPS"]})["trace_level"] == [
        "TIMESTAMPS",
        "TENSORS",
    ]
    assert update(None, {"trace_level": []})["trace_level"] == ["TIMESTAMPS", "TENSORS"]
    assert update(None, {"trace_level": ["NONSENSE"]})["trace_level"] == ["TIMESTAMPS", "TENSORS"]
    assert update(None, {"trace_level": ["OFF"]})["trace_level"] == ["OFF"]


def test_every_so_many_th_request_is_chosen_until_there_are_enough(settings):
    given = {"trace_level": ["TIMESTAMPS"], "trace_rate": "3", "trace_count": "2"}
    settings.update(None, given)
    assert run(settings, times=2) == 0
    assert run(settings, times=1) == 1
    assert settings.get()["trace_count"] == "1"
    assert run(settings, times=30) == 1
    assert settings.get()["trace_count"] == "0"


def test_the_file_is_whole_after_every_trace(settings, file):
    settings.update("simple", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    assert run(settings, "other", 5) == 0
    for count in (1, 2, 3):
        assert run(settings) == 1
        entries = json.loads(file.read_text())
        assert len(entries) == 2 * count
    about, stamps = entries[-2:]
    assert about == {"id": 3, "model_name": "simple", "model_version": 1, "request_id": "r0"}
    assert stamps["id"] == 3
    assert [stamp["name"] for stamp in stamps["timestamps"]] == NAMES
    times = {stamp["name"]: stamp["ns"] for stamp in stamps["timestamps"]}
    assert times["COMPUTE_START"] - times["QUEUE_START"] == 1
    assert times["COMPUTE_END"] - times["COMPUTE_START"] == 14
    assert times["REQUEST_START"] <= times["COMPUTE_END"] <= times["REQUEST_END"]


def test_so_many_traces_go_to_a_file_of_their_own(settings, file):
    settings.update(None, {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "log_frequency": "2"})
    assert run(settings, times=5) == 5
    written = sorted(file.parent.iterdir())
    assert [path.name for path in written] == ["trace.json.0", "trace.json.1"]
    assert [len(json.loads(path.read_text())) for path in written] == [4, 4]


def test_a_file_that_cannot_be_written_fails_no_request(tmp_path, caplog):
    settings = TraceSettings([f"triton,file={tmp_path / 'no' / 'file'}", "rate=1"], Models().find)
    settings.update(None, {"trace_level": ["TIMESTAMPS"]})
    assert run(settings) == 1
    assert "cannot be written" in caplog.text


def test_the_operator_begins(file):
    settings = TraceSettings(
        [
            f"triton,file={file}",
            "triton,log-frequency=9",
            "level=timestamps",
            "rate=2",
            "count=8",
            "mode=triton",
        ],
        Models().find,
    )
    assert settings.get() == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "2",
        "trace_count": "8",
        "log_frequency": "9",
        "trace_file": str(file),
        "trace_mode": "triton",
    }
    settings.update(None, {"trace_rate": "5"})
    assert settings.update(None, {"trace_rate": None})["trace_rate"] == "2"


@pytest.mark.parametrize(
    "option",
    [
        "",
        "file=x",
        "triton,level=TIMESTAMPS",
        "mode=opentelemetry",
        "rate",
        "foo=1",
        "triton,file=",
        "level=ALL",
    ],
)
def test_what_the_operator_says_is_understood_or_told(option):
    with pytest.raises(InvalidOption, match="triton,file=FILE"):
        TraceSettings([option], Models().find)


def test_the_operator_must_say_where_to():
    with pytest.raises(InvalidOption, match="triton,file=FILE"):
        TraceSettings(["level=TIMESTAMPS"], Models().find)


def test_without_a_file_nothing_can_be_traced():
    settings = TraceSettings([], Models().find)
    with pytest.raises(InvalidRequest) as refused:
        settings.update(None, {"trace_level": ["TIMESTAMPS"]})
    assert str(refused.value) == (
        "Attempting to set invalid trace setting :trace file name is not given"
    )
    assert settings.get() == DEFAULT


def test_the_file_cannot_be_changed(settings):
    with pytest.raises(Unsupported) as refused:
        settings.update("simple", {"trace_file": None})
    assert str(refused.value) == "trace file location can not be updated through network protocol"


@pytest.mark.parametrize("act", ["get", "update"])
def test_a_model_that_is_not_there(settings, act):
    with pytest.raises(InvalidRequest, match=r"^Request for unknown model : nope$"):
        settings.get("nope") if act == "get" else settings.update("nope", {})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"trace_rate": "abc"}, "Unable to parse 'trace_rate', got: abc"),
        ({"trace_rate": ""}, "Unable to parse 'trace_rate', got: "),
        (
            {"trace_rate": "99999999999"},
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], "
            "got: 99999999999",
        ),
        (
            {"log_frequency": "-1"},
            "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: -1",
        ),
        ({"trace_count": "-2"}, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        (
            {"trace_count": "-99999999999"},
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], "
            "got: -99999999999",
        ),
        (
            {"trace_level": ["OFF", "TIMESTAMPS"]},
            "Expect only one trace level 'OFF' is specified",
        ),
        (
            {"trace_level": ["TIMESTAMPS"], "trace_rate": "0"},
            "Attempting to set invalid trace setting :sample rate must be non-zero",
        ),
    ],
)
def test_values_out_of_range_are_refused_and_change_nothing(settings, given, words):
    before = settings.get()
    with pytest.raises(InvalidRequest) as refused:
        settings.update(None, given)
    assert str(refused.value) == words
    assert settings.get() == before


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"trace_rate": 5}, "non-string as string"),
        ({"trace_level": "OFF"}, "non-array as array"),
        ({"trace_level": [1]}, "non-string as string"),
    ],
)
def test_values_of_another_type_are_refused(settings, given, words):
    with pytest.raises(MalformedJson, match=f"^attempt to access JSON {words}$"):
        settings.update(None, given)
