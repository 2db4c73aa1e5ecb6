"""Loads Frigate's detector plugins as they are, in place of Frigate."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from pydantic import BaseModel, ConfigDict


class DetectionApi:
    """A stub of Frigate's base class."""

    def __init__(self, detector_config: Any) -> None:
        self.detector_config = detector_config


class BaseDetectorConfig(BaseModel):
    """A stub of Frigate's configuration of a detector."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)


def _stubs() -> dict[str, ModuleType]:
    """The modules that plugins import of Frigate, where it is not installed."""
    if find_spec("frigate") is not None:
        return {}
    names = ("", ".detectors", ".detectors.detection_api", ".detectors.detector_config")
    modules = {f"frigate{name}": ModuleType(f"frigate{name}") for name in names}
    modules["frigate.detectors.detection_api"].DetectionApi = DetectionApi
    modules["frigate.detectors.detector_config"].BaseDetectorConfig = BaseDetectorConfig
    return modules


def load(source: Path) -> ModuleType:
    """Import a plugin."""
    stubs = _stubs()
    sys.modules.update(stubs)
    try:
        spec = importlib.util.spec_from_file_location(f"frigate_{source.stem}", source)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name in stubs:
            del sys.modules[name]
    return module


@contextmanager
def zmq_detector(
    source: Path, endpoint: str, model: str, timeout_ms: int = 60_000
) -> Iterator[Any]:
    """Make Frigate's ZMQ detector, which asks for the model at once."""
    plugin = load(source)
    detector = plugin.ZmqIpcDetector(
        plugin.ZmqDetectorConfig(
            type="zmq",
            endpoint=endpoint,
            request_timeout_ms=timeout_ms,
            model=SimpleNamespace(path=model, model_type=SimpleNamespace(name="yologeneric")),
        )
    )
    yield detector
    # Frigate leaves both to the end of its process.
    detector._socket.close(0)
    detector._context.term()
