"""Triton's trace extension: writes the timestamps of sampled requests to a file.

Source: "Trace Extension" of Triton's protocol and its docs/user_guide/trace.md. Only timestamps are
traced; the level TENSORS is accepted and adds nothing.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from fovea_preprocess.errors import InvalidOption, InvalidRequest, NotFound, Unsupported
from fovea_server.observability.model_statistics import StageTimes
from fovea_server.tensors.triton_json import as_list, as_string, leading_number

log = logging.getLogger(__name__)

_LEVELS = ("TIMESTAMPS", "TENSORS")
_MAX_SIGNED, _MAX_UNSIGNED = 2**31 - 1, 2**32 - 1


@dataclass(frozen=True, slots=True)
class _Sampling:
    """The trace settings that each model may override; a count of -1 means no limit."""

    trace_level: tuple[str, ...] = ()
    trace_rate: int = 1000
    trace_count: int = -1
    log_frequency: int = 0


class TraceSettings:
    """The trace settings of the server and of single models; decides which requests are traced.

    Settings of a model override settings of the server. Settings of the server override
    `--trace-config`.

    Args:
        config: values of `--trace-config`.
        find: looks up a model by name; raises NotFound if it does not exist.

    Raises:
        InvalidOption: a value is invalid, or tracing is enabled without a file.
    """

    def __init__(self, config: Iterable[str], find: Callable[[str], object]) -> None:
        self._find = find
        self._ids = itertools.count(1)
        self._file: TraceFile | None = None
        self._defaults = _Sampling()
        # Settings that requests have changed, for the server (None) and for models. All other
        # settings have their defaults.
        self._own: dict[str | None, dict[str, Any]] = {None: {}}
        self._samplers: dict[str | None, _Sampler] = {}
        try:
            for option in config:
                self._configure(option)
            self._apply(None, {})
        except InvalidRequest as error:
            raise InvalidOption(
                f"--trace-config: {error}; the options are triton,file=FILE, "
                "triton,log-frequency=N, level=TIMESTAMPS, rate=N, count=N and mode=triton"
            ) from error

    def get(self, model: str | None = None) -> dict[str, Any]:
        """Return the settings of a model or of the server (None), by their names in requests."""
        self._check(model)
        sampler = self._sampler(model)
        return {
            "trace_level": list(sampler.settings.trace_level) or ["OFF"],
            "trace_rate": str(sampler.settings.trace_rate),
            "trace_count": str(sampler.left),
            "log_frequency": str(sampler.settings.log_frequency),
            "trace_file": "" if self._file is None else str(self._file.path),
            "trace_mode": "triton",
        }

    def update(self, model: str | None, given: Mapping[str, object]) -> dict[str, Any]:
        """Change the known settings in `given`, and return all settings.

        The value None resets a setting.

        Raises:
            Unsupported: `given` contains the name of the trace file.
            MalformedJson: a value has the wrong type.
            InvalidRequest: the model does not exist, or a value is out of range.
        """
        self._check(model)
        if "trace_file" in given:
            raise Unsupported("trace file location can not be updated through network protocol")
        own = dict(self._own.get(model, {}))
        for name, parse in _PARSERS.items():
            if name in given and given[name] is None:
                own.pop(name, None)
            elif name in given and (value := parse(name, given[name])) is not None:
                own[name] = value
        self._apply(model, own)
        return self.get(model)

    def sample(self, model: str, version: int, request_id: str) -> TimedRequest | None:
        """Start a trace if the new request is sampled; otherwise return None."""
        if not self._sampler(model).chooses():
            return None
        return TimedRequest(next(self._ids), model, version, request_id, self._save)

    def _save(self, trace: TimedRequest) -> None:
        assert self._file is not None, "nothing is chosen without one"
        self._file.add(trace.entries(), self._sampler(trace.model).settings.log_frequency)

    def _sampler(self, model: str | None) -> _Sampler:
        return self._samplers.get(model) or self._samplers[None]

    def _check(self, model: str | None) -> None:
        try:
            if model is not None:
                self._find(model)
        except NotFound as error:
            raise InvalidRequest(f"Request for unknown model : {model}") from error

    def _apply(self, model: str | None, own: dict[str, Any]) -> None:
        scope = {**self._own, model: own}
        samplers = {
            name: _Sampler(replace(self._defaults, **{**scope[None], **settings}))
            for name, settings in scope.items()
            # A change to the server's settings also restarts the counts of models that have no
            # settings of their own.
            if model in (None, name)
        }
        for settings in (sampler.settings for sampler in samplers.values()):
            reason = None
            if settings.trace_level and settings.trace_rate == 0:
                reason = "sample rate must be non-zero"
            elif settings.trace_level and self._file is None:
                reason = "trace file name is not given"
            if reason is not None:
                raise InvalidRequest(f"Attempting to set invalid trace setting :{reason}")
        self._own = scope
        self._samplers = {**self._samplers, **samplers}

    def _configure(self, option: str) -> None:
        setting, _, value = option.partition("=")
        given: dict[str, Any] = {}
        match setting.split(","):
            case "triton", "file" if value:
                self._file = TraceFile(Path(value))
            case "triton", "log-frequency":
                given["log_frequency"] = _whole("log_frequency", value)
            case ["level"] if (level := _levels("trace_level", [value.upper()])) is not None:
                given["trace_level"] = level
            case ["rate"]:
                given["trace_rate"] = _whole("trace_rate", value)
            case ["count"]:
                given["trace_count"] = _count("trace_count", value)
            case ["mode"] if value == "triton":
                pass
            case _:
                raise InvalidRequest(f"unknown option '{option}'")
        self._defaults = replace(self._defaults, **given)


class _Sampler:
    """Samples every n-th request, until a number of traces is reached."""

    def __init__(self, settings: _Sampling) -> None:
        self.settings = settings
        self.left = settings.trace_count
        self._seen = 0

    def chooses(self) -> bool:
        if not self.settings.trace_level or not self.left:
            return False
        self._seen += 1
        if self._seen % self.settings.trace_rate:
            return False
        if self.left > 0:
            self.left -= 1
        return True


def _levels(name: str, value: object) -> tuple[str, ...] | None:
    """Parse a list of trace levels.

    Return an empty tuple for OFF, and None if no level is known.
    """
    given = [as_string(level) for level in as_list(value)]
    if given == ["OFF"]:
        return ()
    if "OFF" in given:
        raise InvalidRequest("Expect only one trace level 'OFF' is specified")
    return tuple(level for level in _LEVELS if level in given) or None


def _whole(name: str, value: object) -> int:
    return _number(name, value, 0, _MAX_UNSIGNED)


def _count(name: str, value: object) -> int:
    number = _number(name, value, -_MAX_SIGNED, _MAX_SIGNED, shown_least=-1)
    if number < -1:
        raise InvalidRequest(f"Unable to parse '{name}'. Expecting value >= -1, got:{value}")
    return number


def _number(name: str, value: object, least: int, most: int, shown_least: int = 0) -> int:
    number = leading_number(as_string(value))
    if number is None:
        raise InvalidRequest(f"Unable to parse '{name}', got: {value}")
    if not least <= number <= _MAX_SIGNED:
        raise InvalidRequest(
            f"Unable to parse '{name}', value is out of range [ {shown_least}, {most} ], "
            f"got: {value}"
        )
    return number


_PARSERS: dict[str, Callable[[str, object], object]] = {
    "trace_level": _levels,
    "trace_rate": _whole,
    "trace_count": _count,
    "log_frequency": _whole,
}


class TimedRequest:
    """Records timestamps of a request, in nanoseconds of the monotonic clock.

    The first timestamp is recorded when the object is created.
    """

    def __init__(
        self,
        number: int,
        model: str,
        version: int,
        request_id: str,
        keep: Callable[[TimedRequest], None],
    ) -> None:
        self.model = model
        self._keep = keep
        self._number = number
        self._about = {"id": number, "model_name": model, "model_version": version}
        if request_id:
            self._about["request_id"] = request_id
        self._stamps: list[dict[str, Any]] = []
        self._mark("REQUEST_START", time.monotonic_ns())

    def record_times(self, times: StageTimes) -> None:
        """Record the timestamps of the engine's stages."""
        end = time.monotonic_ns()
        output = end - times.output
        infer = output - times.infer
        start = infer - times.input
        self._mark("QUEUE_START", start - times.queue)
        self._mark("COMPUTE_START", start)
        self._mark("COMPUTE_INPUT_END", infer)
        self._mark("COMPUTE_OUTPUT_START", output)
        self._mark("COMPUTE_END", end)

    def save(self) -> None:
        """Write the trace to the file; call it after the response was sent."""
        self._keep(self)

    def entries(self) -> list[dict[str, Any]]:
        """Record the end of the request, and return the entries for a trace file."""
        self._mark("REQUEST_END", time.monotonic_ns())
        return [self._about, {"id": self._number, "timestamps": self._stamps}]

    def _mark(self, name: str, ns: int) -> None:
        self._stamps.append({"name": name, "ns": ns})


class TraceFile:
    """Writes traces to one file, or to numbered files with a fixed number of traces in each file.

    A file is a JSON array, which is valid JSON after every trace. An existing file is overwritten.
    If a trace cannot be written, it is dropped, and the traces before it stay in the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._begun = False
        self._gathered: list[Any] = []
        self._traces = self._written = self._dropped = 0

    def add(self, entries: Sequence[Any], log_frequency: int) -> None:
        """Add the entries of a trace.

        A numbered file has `log_frequency` traces; if `log_frequency` is 0, all traces are in one
        file.
        """
        with self._lock:
            path, traces = self.path, 1
            if log_frequency:
                self._gathered += entries
                self._traces += 1
                if self._traces < log_frequency:
                    return
                path = path.with_name(f"{path.name}.{self._written}")
                entries, self._gathered = self._gathered, []
                traces, self._traces = self._traces, 0
            try:
                _write(path, orjson.dumps(list(entries)), append=self._begun and not log_frequency)
            except OSError as error:
                if not self._dropped:
                    log.error(
                        "traces are dropped, because %s cannot be written (%s): %s",
                        path,
                        error.strerror,
                        "free disk space, or correct the permissions of the file",
                    )
                self._dropped += traces
                return
            self._begun |= not log_frequency
            self._written += bool(log_frequency)
            if self._dropped:
                log.warning("traces are written to %s again; %d were dropped", path, self._dropped)
                self._dropped = 0


def _write(path: Path, array: bytes, *, append: bool) -> None:
    """Write a JSON array, or append it to the array in the file; restore the file on an error."""
    flags = os.O_WRONLY | os.O_CREAT | (0 if append else os.O_TRUNC)
    file = os.open(path, flags, 0o666)
    try:
        # The size is 0 if the file was removed since the last write.
        end = os.fstat(file).st_size
        rest, at = memoryview(array[1:] if end else array), end
        try:
            while rest:
                count = os.pwrite(file, rest, at)
                rest, at = rest[count:], at + count
        except OSError:
            os.ftruncate(file, end)
            raise
        if end:
            # Overwrite the bracket that closed the array. Overwriting a byte needs no more disk
            # space.
            os.pwrite(file, b",", end - 1)
    finally:
        os.close(file)
