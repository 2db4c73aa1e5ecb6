"""Loads libraries of TensorRT plugins that the user chose.

Loading a library runs its code. So a library is loaded only from the path that the user gave. When
a server opens an engine, the library must have the same SHA-256 as at the build.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from threading import Lock

from fovea_engines.backends.tensorrt.runtime import Runtime
from fovea_engines.repository.files import file_sha256
from fovea_engines.repository.options import Plugin
from fovea_preprocess.errors import BackendUnavailable, InvalidModel, InvalidOption

# Functions of a library whose plugins TensorRT can register (IPluginRegistry::loadLibrary in
# NvInferRuntime.h). Libraries without these functions register their plugins themselves when they
# are loaded (REGISTER_TENSORRT_PLUGIN).
_ENTRIES = ("getCreators", "getPluginCreators")

_loaded: set[tuple[str, Plugin]] = set()
_loading = Lock()


def load_plugins(runtime: Runtime, plugins: Iterable[Plugin]) -> None:
    """Register TensorRT's own plugins and the plugins of libraries.

    The plugins stay registered until the process ends.

    Raises:
        NotFound: a library does not exist.
        InvalidModel: a library differs from the library that the build of the engine used.
        BackendUnavailable: a library cannot be loaded. The message has the reason of the system's
            loader.
        InvalidOption: a library adds no plugin to TensorRT.
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
            "differs from the card's): restore that file, or build the engine again"
        )
    registry = trt.get_plugin_registry()
    before = len(registry.all_creators)
    try:
        # RTLD_GLOBAL lets a library use the symbols of another one, because a plugin may consist of
        # several libraries.
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
        reason = " ".join(messages) or "it registers no new plugin"
        raise InvalidOption(
            f"{runtime.backend} {runtime.version} found no plugin in {plugin.path} ({reason}): "
            "give the library with the model's plugins, or leave --plugin out"
        )
