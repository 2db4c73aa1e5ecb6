"""Loads libraries of TensorRT plugins that the user chose.

Loading a library runs its code. So a library is loaded only from the given path. At run time its
bytes must also be the same as at the build.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from threading import Lock

from fovea_engines.backends.tensorrt.runtime import Runtime
from fovea_engines.repository.files import file_sha256
from fovea_engines.repository.options import Plugin
from fovea_preprocess.errors import BackendUnavailable, InvalidModel, InvalidOption

# Symbols of a library that TensorRT can register (IPluginRegistry::loadLibrary of
# NvInferRuntime.h). Other libraries register themselves when they are loaded
# (REGISTER_TENSORRT_PLUGIN).
_ENTRIES = ("getCreators", "getPluginCreators")

_loaded: set[tuple[str, Plugin]] = set()
_loading = Lock()


def load_plugins(runtime: Runtime, plugins: Iterable[Plugin]) -> None:
    """Register TensorRT's own plugins and the plugins of libraries, for the life of the process.

    Raises:
        NotFound: a library is missing.
        InvalidModel: a library differs from the one at the build of the engine.
        BackendUnavailable: a library cannot be loaded; the message comes from the loader.
        InvalidOption: a library has no plugin that is new to TensorRT.
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
        # A plugin may consist of several libraries that need each other's symbols.
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
        reason = " ".join(messages) or "it registers none that is new"
        raise InvalidOption(
            f"{runtime.backend} {runtime.version} found no plugin in {plugin.path} ({reason}): "
            "give the library with the model's plugins, or leave --plugin out"
        )
