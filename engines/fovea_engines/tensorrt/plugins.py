"""Libraries of TensorRT plugins that the user named: a network or a plan may need their layers.

Loading one runs its code. So it is loaded from the path that was given and from nowhere else, and
at run time only where its bytes are those that the engine was built with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Self

from fovea_engines.digest import file_sha256
from fovea_engines.tensorrt.compat import Runtime
from fovea_preprocess.errors import BackendUnavailable, InvalidModel, InvalidOption, NotFound

# The type of a shared object, ET_DYN, is the half word at 16 (elf(5)).
_ELF, _TYPE_AT, _SHARED = b"\x7fELF", 16, 3

# What a library exports that TensorRT can register by itself (IPluginRegistry::loadLibrary of
# NvInferRuntime.h); others register when they are loaded (REGISTER_TENSORRT_PLUGIN).
_ENTRIES = ("getCreators", "getPluginCreators")


@dataclass(frozen=True, slots=True)
class Plugin:
    """A library of plugins, as the card of an engine that needs it names it.

    Attributes:
        path: where it lay at build: absolute, links followed.
        sha256: of its bytes.
    """

    path: Path
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """The library at `path`, which is not loaded yet.

        Raises:
            NotFound: there is no such file.
            InvalidOption: it is not a shared library for Linux.
        """
        try:
            with path.open("rb") as file:
                start = file.read(_TYPE_AT + 2)
        except FileNotFoundError as error:
            raise NotFound(f"the plugin library {path} is not there") from error
        except OSError as error:
            raise InvalidOption(
                f"the plugin library {path} cannot be read: {error.strerror}"
            ) from error
        if start[:4] != _ELF or int.from_bytes(start[_TYPE_AT:], "little") != _SHARED:
            raise InvalidOption(
                f"{path} is not a shared library (ELF): give the .so file that TensorRT's plugins "
                "were linked into"
            )
        return cls(path.resolve(), file_sha256(path))


_loaded: set[tuple[str, Plugin]] = set()
_loading = Lock()


def load_plugins(runtime: Runtime, plugins: Iterable[Plugin]) -> None:
    """Make TensorRT's own plugins known to it, and those of these libraries.

    They stay for the life of the process; a library that is loaded already is left alone.

    Raises:
        NotFound: a library is not there any more.
        InvalidModel: it is not the one that the engine was built with.
        BackendUnavailable: it cannot be loaded here; the message is the loader's.
        InvalidOption: it has no plugin that TensorRT does not have already.
    """
    with _loading:
        runtime.trt.init_libnvinfer_plugins(runtime.logger, "")
        for plugin in plugins:
            if (runtime.backend, plugin) not in _loaded:
                _load(runtime, plugin)
                _loaded.add((runtime.backend, plugin))


def _load(runtime: Runtime, plugin: Plugin) -> None:
    trt = runtime.trt
    if file_sha256(plugin.path) != plugin.sha256:
        raise InvalidModel(
            f"{plugin.path} is not the plugin library that the engine was built with (its sha256 "
            "differs from the card's): put that one back, or build the engine again"
        )
    registry = trt.get_plugin_registry()
    before = len(registry.all_creators)
    try:
        # A library of plugins may be made of several, which see each other's symbols.
        library = ctypes.CDLL(str(plugin.path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BackendUnavailable(
            f"the plugin library cannot be loaded here ({error}): build it for {runtime.backend} "
            f"{runtime.version} and this machine"
        ) from error
    with runtime.log.collect() as messages:
        if any(hasattr(library, entry) for entry in _ENTRIES):
            registry.load_library(str(plugin.path))
    if len(registry.all_creators) == before:
        said = " ".join(messages) or "it registers none that is new"
        raise InvalidOption(
            f"{runtime.backend} {runtime.version} has no more plugins with {plugin.path} ({said}): "
            "give the library that has the network's plugins, or leave it out"
        )
