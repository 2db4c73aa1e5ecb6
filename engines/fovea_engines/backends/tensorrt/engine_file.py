"""Writes and opens TensorRT engines.

An engine directory has the plan, the list of its layers, its ONNX graph, and a letterbox kernel.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

from fovea_engines.backends.backend import CompilePlan
from fovea_engines.backends.tensorrt.backend import ENGINE_FILE, KEPT_FILE
from fovea_engines.backends.tensorrt.builder import build_plan
from fovea_engines.backends.tensorrt.caches import (
    cache_folder,
    duration,
    keep_kernels,
    last_duration,
    read_kernels,
    record_duration,
    timing_cache_file,
)
from fovea_engines.backends.tensorrt.cuda.driver import Device, megabytes, open_device
from fovea_engines.backends.tensorrt.cuda.letterbox import open_letterbox, write_letterbox
from fovea_engines.backends.tensorrt.cuda.quiet import QUIET
from fovea_engines.backends.tensorrt.cuda.resources import let_go
from fovea_engines.backends.tensorrt.layers_file import LAYERS_FILE
from fovea_engines.backends.tensorrt.log import out_of_memory
from fovea_engines.backends.tensorrt.plan_file import PlanFile, read_plan_file
from fovea_engines.backends.tensorrt.plugins import load_plugins
from fovea_engines.backends.tensorrt.runtime import Runtime, load_runtime
from fovea_engines.backends.tensorrt.session import (
    SLOTS,
    TensorRTImageSession,
    TensorRTSession,
)
from fovea_engines.repository.files import write_file
from fovea_engines.repository.options import BuilderOptions, Plugin, target
from fovea_preprocess.errors import BackendUnavailable, OutOfMemory

# Text in the message for TensorRT for RTX's error OLD_CUDA_DRIVER.
_OLD_DRIVER = "old cuda driver"


def write_engine(backend: str, model: bytes, folder: Path, plan: CompilePlan) -> Path:
    """Build a plan into a directory, with its letterbox kernel and a copy of its ONNX graph.

    `plan.progress` receives TensorRT's phases. If this machine built the same engine before, it
    also receives the duration of that build.

    Raises:
        FoveaError: the errors of `build_plan`.
    """
    options, progress = plan.builder or BuilderOptions(), plan.progress
    runtime, device = load_runtime(backend), target(options)
    # Builds with equal keys have the same input and options, so they take about the same time.
    key = f"{plan.source} {plan.precision} {device} {backend} {runtime.version} {options}"
    cache = cache_folder()
    builds = cache / "builds.json"
    if (seconds := last_duration(builds, key)) is not None:
        progress.note(f"the last build of this engine for {device} took {duration(seconds)}")
    began = perf_counter()
    timings = timing_cache_file(cache, runtime, device)
    built = build_plan(model, options, runtime, progress, timings)
    record_duration(builds, key, perf_counter() - began)
    write_file(folder / ENGINE_FILE, built.data)
    write_file(folder / KEPT_FILE, model)
    built.layers.write(folder / LAYERS_FILE)
    if plan.preprocess is not None:
        write_letterbox(folder, plan.preprocess, progress)
    return folder / ENGINE_FILE


def open_engine(
    backend: str,
    path: Path,
    max_batch: int,
    plugins: tuple[Plugin, ...],
    streams: int | None = None,
) -> TensorRTSession:
    """Load a plan, or an .engine file of Ultralytics that contains a plan; see `open_session`.

    Raises:
        InvalidModel: the file does not contain a plan.
        BackendUnavailable: the plan is for another version of TensorRT or another GPU, or this
            machine has no GPU.
        OutOfMemory: the GPU has too little free memory.
    """
    runtime = load_runtime(backend)
    file = read_plan_file(path)
    if (reason := file.rejection(backend, runtime.version)) is not None:
        raise BackendUnavailable(reason)
    device = open_device()
    try:
        load_plugins(runtime, plugins)
        with device.current():
            return _open(runtime, file, device, max_batch, streams or SLOTS)
    except BaseException as error:
        with QUIET.synchronising():
            let_go(error)
        device.close()
        raise


def _open(
    runtime: Runtime, file: PlanFile, device: Device, max_batch: int, slots: int
) -> TensorRTSession:
    with QUIET.synchronising():
        engine = _load(runtime, file, device)
        known = read_kernels(file.path)
        runtime_config, runtime_cache = runtime.runtime_config(engine, known)
        letterbox = open_letterbox(file.path.parent, device)
    kind: type[TensorRTSession] = TensorRTSession if letterbox is None else TensorRTImageSession
    session = kind(
        engine,
        device,
        runtime.trt,
        max_batch=max_batch,
        slots=slots,
        runtime_config=runtime_config,
        runtime_cache=runtime_cache,
        letterbox=letterbox,
    )
    if runtime_cache is not None:
        # The session has run every batch size once, so all kernels are compiled now.
        keep_kernels(runtime_cache, file.path, known)
    return session


def _load(runtime: Runtime, file: PlanFile, device: Device) -> Any:
    with file.plan() as data, runtime.log.collect() as messages:
        reason = runtime.rejection(data)
        if reason is None:
            deserializer = runtime.deserializer()
            engine = deserializer.deserialize_cuda_engine(data)
            if engine is not None:
                return engine
    reason = reason or " ".join(messages) or "no reason given"
    if out_of_memory(reason):
        free, total = device.memory()
        raise OutOfMemory(
            f"not enough GPU memory for {file.path}: {device.name} has {megabytes(free)} of "
            f"{megabytes(total)} free: unload a model, or stop other programs on the GPU"
        )
    remedy = (
        "update the NVIDIA driver"
        if _OLD_DRIVER in reason
        else ("build the engine on this machine")
    )
    raise BackendUnavailable(
        f"TensorRT {runtime.version} cannot load {file.path} on {device.name} ({reason}): {remedy}"
    )
