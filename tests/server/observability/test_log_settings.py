"""The log's settings over the protocol, and what the log then tells."""

import json
import logging
import re
from pathlib import Path

import pytest

from fovea_preprocess.errors import InvalidOption, MalformedJson, Unavailable, Unsupported
from fovea_server import logs
from fovea_server.dataplane.extensions import LogSettings
from fovea_server.log_lines import REQUEST_ID
from fovea_server.logs import ServerLog, set_up_logging

DEFAULT = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture
def log(monkeypatch, logging_kept):
    """A log in place of the process's."""
    made = ServerLog()
    monkeypatch.setattr(logs, "SERVER_LOG", made)
    return made


@pytest.fixture
def settings(log):
    return LogSettings(log)


@pytest.fixture
def told(log, tmp_path):
    """What the log has told by now, one record of each severity more at each call."""
    file = tmp_path / "server.log"
    set_up_logging("info", file=file)

    def tell() -> str:
        before = file.read_text()
        logger = logging.getLogger("fovea_server.test")
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logger.log(level, "it is %s", logging.getLevelName(level))
        logger.critical("it is CRITICAL")
        log.close()
        return file.read_text().removeprefix(before)

    return tell


def names(text: str) -> list[str]:
    return re.findall(r"it is (\w+)", text)


def test_settings_are_triton_s_to_begin_with(settings):
    assert settings.get() == DEFAULT
    assert settings.update({}) == DEFAULT


def test_severities_are_told_as_they_are_switched(settings, told):
    assert names(told()) == ["INFO", "WARNING", "ERROR", "CRITICAL"]
    assert settings.update({"log_info": False})["log_info"] is False
    assert names(told()) == ["WARNING", "ERROR", "CRITICAL"]
    settings.update({"log_info": True, "log_warning": False})
    assert names(told()) == ["INFO", "ERROR", "CRITICAL"]
    settings.update({"log_info": False, "log_error": False})
    assert names(told()) == []
    settings.update({"log_info": True, "log_warning": True, "log_error": True})
    assert names(told()) == ["INFO", "WARNING", "ERROR", "CRITICAL"]


def test_debug_is_logged_where_the_log_is_verbose(settings, told):
    assert names(told())[0] == "INFO"
    assert settings.update({"log_verbose_level": 2})["log_verbose_level"] == 2
    assert names(told())[0] == "DEBUG"
    settings.update({"log_verbose_level": 0})
    assert names(told())[0] == "INFO"


def test_times_are_told_in_either_format(settings, told):
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO ", told())
    assert settings.update({"log_format": "ISO8601"})["log_format"] == "ISO8601"
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO ", told())
    settings.update({"log_format": "default"})
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO ", told())


def test_json_has_an_object_a_line_with_extra_fields_and_exceptions(settings, told, log):
    assert settings.update({"log_format": "json"})["log_format"] == "json"
    logger = logging.getLogger("uvicorn.error")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("it %s", "failed", extra={"id": "abc", "path": Path("x"), "level": 7})
    logger.warning("no text: \udcff", extra={"color_message": "red"})
    told()
    lines = map(json.loads, log.file.read_text().splitlines())
    # A thread of an earlier test may log, too.
    own = [line for line in lines if line["message"].startswith(("it ", "no text"))]
    first, second, *rest = own
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    exception = first.pop("exception")
    assert exception.startswith("Traceback")
    assert exception.endswith("ValueError: two\nlines")
    assert list(first.items()) == [
        ("level", "ERROR"),
        ("logger", "fovea_server.http"),
        ("message", "it failed"),
        ("id", "abc"),
        ("path", "x"),
    ]
    assert second["message"] == "no text: \udcff"
    assert set(second) == {"time", "level", "logger", "message"}
    assert [record["level"] for record in rest] == ["INFO", "WARNING", "ERROR", "CRITICAL"]


def test_records_carry_the_id_of_the_request(settings, told, log):
    token = REQUEST_ID.set("abc")
    told()
    settings.update({"log_format": "json"})
    told()
    REQUEST_ID.reset(token)
    told()
    lines = log.file.read_text().splitlines()
    assert all(line.endswith(" id=abc") for line in lines[:4])
    assert [json.loads(line).get("id") for line in lines[4:]] == ["abc"] * 4 + [None] * 4


def test_no_name_of_a_client_begins_a_line_or_steers_a_terminal(log, tmp_path):
    set_up_logging("info", file=tmp_path / "server.log")
    logger = logging.getLogger("fovea_server.test")
    name = "x\n2026-01-01 FORGED\r\x1b[2J\x85\u2028y"
    logger.warning("model %s", name)
    try:
        raise ValueError(name)
    except ValueError:
        logger.exception("failed")
    log.close()
    first, second, *traceback = (tmp_path / "server.log").read_text().splitlines()
    assert first.endswith(r"model x\n2026-01-01 FORGED\r\x1b[2J\x85\u2028y")
    assert second.endswith("fovea_server.test: failed")
    assert traceback[0] == "  Traceback (most recent call last):"
    assert traceback[-1] == r"  2026-01-01 FORGED\r\x1b[2J\x85\u2028y"
    assert all(line.startswith("  ") for line in traceback)


def test_a_long_message_is_cut(log, tmp_path):
    set_up_logging("info", file=tmp_path / "server.log")
    logging.getLogger("fovea_server.test").warning("model %s", "x" * 1_000_000)
    log.close()
    line = (tmp_path / "server.log").read_text()
    assert len(line) < 10_000
    assert line.endswith("x...\n")


def test_none_and_what_is_unknown_change_nothing(settings):
    given = {"log_info": None, "log_file": None, "log_format": None, "nonsense": 7}
    assert settings.update(given) == DEFAULT


def test_the_file_is_told_and_cannot_be_changed(settings, told, log):
    assert settings.get()["log_file"] == str(log.file)
    with pytest.raises(Unsupported) as refused:
        settings.update({"log_file": "/tmp/other"})
    assert str(refused.value) == "log file location can not be updated through network protocol"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"log_verbose_level": "x"}, "non-unsigned-integer as unsigned-integer"),
        ({"log_verbose_level": -1}, "non-unsigned-integer as unsigned-integer"),
        ({"log_verbose_level": True}, "non-unsigned-integer as unsigned-integer"),
        ({"log_info": 1}, "non-boolean as boolean"),
        ({"log_error": "true"}, "non-boolean as boolean"),
        ({"log_format": 1}, "non-string as string"),
    ],
)
def test_values_of_another_type_are_refused_and_change_nothing(settings, given, words):
    with pytest.raises(MalformedJson) as refused:
        settings.update({"log_warning": False, **given})
    assert str(refused.value) == f"attempt to access JSON {words}"
    assert settings.get() == DEFAULT


def test_a_format_that_is_unknown_is_refused_in_triton_s_words(settings):
    with pytest.raises(Unavailable) as refused:
        settings.update({"log_format": "xml"})
    assert str(refused.value) == "invalid argument for --log_format, got: xml"


@pytest.mark.parametrize(
    ("level", "least"), [("debug", "DEBUG"), ("warning", "WARNING"), ("error", "ERROR")]
)
def test_the_log_begins_as_the_operator_says(log, told, level, least, tmp_path):
    set_up_logging(level, file=tmp_path / "server.log")
    assert names(told())[0] == least
    assert LogSettings(log).get()["log_verbose_level"] == (1 if level == "debug" else 0)


def test_a_log_that_cannot_be_written_is_told(log, tmp_path):
    with pytest.raises(InvalidOption, match="missing"):
        set_up_logging("info", file=tmp_path / "missing" / "server.log")
