"""`fovea doctor`: reports this machine's hardware and packages, problems, and remedies."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fovea_engines.backends.backend import BackendInfo
from fovea_engines.backends.installing import install, install_extra
from fovea_engines.backends.registry import BACKENDS, CPU_BACKENDS, available_backends
from fovea_engines.device import (
    Memory,
    cpu_flags,
    memory,
    processor_name,
    usable_cores,
    visible_gpus,
)
from fovea_preprocess.entry_points import broken_entries, removed_tables
from fovea_server.cli.options import AsJson

# Name of a CPU feature in the output -> its flag in /proc/cpuinfo.
_CPU_FEATURES = {
    "AVX2": "avx2",
    "AVX512": "avx512f",
    "AVX-VNNI": "avx_vnni",
    "AVX512-VNNI": "avx512_vnni",
    "AMX-INT8": "amx_int8",
    "AVX512-BF16": "avx512_bf16",
    "AMX-BF16": "amx_bf16",
}
_MODULES = {
    "tensorrt": "tensorrt",
    "tensorrt-cu12": "tensorrt",
    "tensorrt-cu13": "tensorrt",
    "tensorrt-rtx": "tensorrt_rtx",
    "tensorrt-rtx-cu12-bindings": "tensorrt_rtx_bindings",
    "tensorrt-rtx-cu13-bindings": "tensorrt_rtx_bindings",
    "pycuda": "pycuda",
    "cuda-bindings": "cuda",
    "onnxruntime-gpu": "onnxruntime",
}
"""Name of a distribution (installed package) -> name of the module that it installs."""
# Major version of CUDA -> the oldest branch of the NVIDIA driver that supports it (source: the
# prerequisites of TensorRT 11.4).
_MIN_DRIVER = {12: 535, 13: 580}
_OF_CUDA_12 = {"tensorrt-cu12", "tensorrt-rtx-cu12-bindings"}
# Packages that have no use if there is no GPU. cuda-bindings and TensorRT for RTX are not in this
# list, because they can compile engines for GPUs of other machines.
_IDLE = {"pycuda", "tensorrt", "tensorrt-cu12", "tensorrt-cu13"}
_HEADERS = Path("usr/local/cuda/include/cuda.h")
_MIN_MEMORY = 512 * 2**20
_MIN_SHARED_MEMORY = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor.

    Attributes:
        name: name of the processor.
        cores: number of cores.
        usable: number of cores that this process may use, by its CPU affinity and its cgroup's
            quota.
        features: CPU features (keys of `_CPU_FEATURES`); None if they cannot be read.
    """

    name: str
    cores: int
    usable: int
    features: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """An NVIDIA GPU that this process may use, with its memory in MiB."""

    name: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that `fovea doctor` reads from the machine.

    Attributes:
        cpu: the processor.
        memory: main and shared memory.
        backends: all backends, installed or not.
        driver: version of the NVIDIA driver; None if no driver is loaded.
        gpus: GPUs that this process may use.
        gpu_packages: version of each installed package that is relevant for GPUs, by the package's
            name.
        cuda_toolkit: path of CUDA's compiler or headers; None if they are not installed.
        unread: faults that prevented entry points of other installed packages from being read.
    """

    cpu: Cpu
    memory: Memory
    backends: tuple[BackendInfo, ...]
    driver: str | None
    gpus: tuple[Gpu, ...]
    gpu_packages: dict[str, str]
    cuda_toolkit: str | None = None
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """A problem and its remedy; `fatal` is True if the problem prevents serving any model."""

    fatal: bool
    text: str


def doctor(
    as_json: AsJson = False,
) -> None:
    """Check this machine for problems, and suggest fixes.

    Exits with 1 if no model can be served on the CPU.

    Example: fovea doctor
    """
    machine = look()
    findings = diagnose(machine)
    if as_json:
        document = asdict(machine) | {"findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        _show(machine, findings)
    if any(finding.fatal for finding in findings):
        raise typer.Exit(1)


def look() -> Machine:
    """Read the hardware and the installed packages of this machine."""
    root = Path("/")
    return Machine(
        cpu=Cpu(processor_name(), os.cpu_count() or 1, usable_cores(), cpu_features(root)),
        memory=memory(root),
        backends=available_backends(),
        driver=driver_version(root),
        gpus=tuple(Gpu(gpu.name, size >> 20) for gpu, size in visible_gpus()),
        gpu_packages=installed_packages(),
        cuda_toolkit=cuda_toolkit(root),
        unread=(*broken_entries(), *removed_tables()),
    )


def cpu_features(root: Path) -> tuple[str, ...] | None:
    """Return the CPU features that proc/cpuinfo lists.

    Return None if the file lists no flags, as on CPUs that are not x86.
    """
    flags = cpu_flags(root)
    if flags is None:
        return None
    return tuple(name for name, flag in _CPU_FEATURES.items() if flag in flags)


def driver_version(root: Path) -> str | None:
    """Return the version of the loaded NVIDIA driver, from proc/driver/nvidia/version."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    # Example: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Fri ...". For the open
    # kernel module, the text before the version differs, so the first word that looks like a
    # version is returned.
    words = text.partition("\n")[0].split()
    return next((w for w in words if w[0].isdigit() and "." in w), "unknown")


def installed_packages() -> dict[str, str]:
    """Return the version of each installed package that is relevant for GPUs, by package name."""
    found: dict[str, str] = {}
    for distribution, module in _MODULES.items():
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(distribution)
            if util.find_spec(module) is not None:
                found[distribution] = version
    return found


def cuda_toolkit(root: Path) -> str | None:
    """Return the path of CUDA's compiler or headers, which pip needs to compile pycuda."""
    headers = root / _HEADERS
    return shutil.which("nvcc") or (str(headers) if headers.is_file() else None)


def diagnose(machine: Machine) -> tuple[Advice, ...]:
    """Return all problems, the fatal ones first; the result is empty if there are no problems."""
    backends = [each for each in machine.backends if not BACKENDS[each.name].on_gpu]
    problems = [
        f"Engines built for {backend.name} cannot be served: {backend.problem}."
        for backend in backends
        if backend.problem is not None
    ]
    unread = (f"{text}." for text in machine.unread)
    minor = (*_processor_and_memory(machine), *_gpu(machine), *unread)
    if len(problems) < len(backends):
        return tuple(Advice(False, text) for text in (*problems, *minor))
    command = install(*(each.name for each in backends if each.name in CPU_BACKENDS))
    none = Advice(True, f"No engine can run, because no backend is installed: {command}.")
    return (none, *(Advice(False, text) for text in minor))


def _processor_and_memory(machine: Machine) -> Iterator[str]:
    cpu, memory = machine.cpu, machine.memory
    if cpu.features is not None and "AVX2" not in cpu.features:
        yield (
            "The processor has no AVX2, so inference is several times slower: in a virtual "
            "machine, expose the CPU model of the host."
        )
    if cpu.usable < cpu.cores:
        yield (
            f"Fovea can use only {cpu.usable} of {cpu.cores} cores: to use more, raise the CPU "
            "limit of the container or change the affinity mask."
        )
    if memory.available < _MIN_MEMORY:
        yield (
            f"Only {memory.available / 2**20:.0f} MiB of memory are free, but a served model "
            "needs about 300 MiB: stop other programs, or serve smaller models."
        )
    if memory.shared < _MIN_SHARED_MEMORY:
        yield (
            f"/dev/shm has only {memory.shared / 2**20:.0f} MiB, too little for clients that "
            "pass tensors through shared memory: start the container with --shm-size=1g."
        )


def _gpu(machine: Machine) -> Iterator[str]:
    for_gpus = [each for each in machine.backends if BACKENDS[each.name].on_gpu and each.version]
    for backend in for_gpus:
        if backend.problem is not None:
            yield f"Engines built for {backend.name} cannot be served: {backend.problem}."
    yield from gpu_findings(
        machine.driver,
        tuple(gpu.name for gpu in machine.gpus),
        tuple(backend.name for backend in for_gpus),
        machine.gpu_packages,
        machine.cuda_toolkit,
    )


def gpu_findings(
    driver: str | None,
    gpus: tuple[str, ...],
    backends: tuple[str, ...],
    packages: Mapping[str, str],
    toolkit: str | None,
) -> Iterator[str]:
    """Yield the problems that prevent the use of a GPU, with remedies.

    Args:
        driver: version of the NVIDIA driver; None if no driver is loaded.
        gpus: names of the GPUs that this process may use.
        backends: GPU backends whose runtime is installed.
        packages: result of `installed_packages`.
        toolkit: result of `cuda_toolkit`.
    """
    yield from _driver(driver, gpus, packages)
    if gpus and not backends:
        yield (
            f"{gpus[0]} is not used, because TensorRT is not installed: "
            f"{install_extra('tensorrt')}. TensorRT for RTX also works: {install_extra('rtx')}."
        )
    elif gpus:
        yield from _list_missing_packages(packages, toolkit)
    if {"tensorrt-cu12", "tensorrt-cu13"} <= packages.keys():
        yield (
            "tensorrt-cu12 and tensorrt-cu13 are both installed, and overwrite each other's "
            "files: uninstall both, then install the one for the CUDA version of the driver "
            "(nvidia-smi shows it)."
        )
    if "onnxruntime-gpu" in packages:
        yield (
            "onnxruntime-gpu is installed, but Fovea uses GPUs only through TensorRT. The package "
            "overwrites files of onnxruntime, which runs models on the CPU: uninstall both, then "
            f"{install('onnxruntime')}."
        )
    if not gpus and (idle := _IDLE & packages.keys()):
        yield (
            f"{', '.join(sorted(idle))} are installed, but no GPU is available: models run on the "
            "CPU."
        )


def _driver(
    driver: str | None, gpus: tuple[str, ...], packages: Mapping[str, str]
) -> Iterator[str]:
    if gpus and driver is None:
        return  # for example in WSL, where the driver is installed in Windows
    if driver is not None and not gpus:
        yield (
            f"NVIDIA driver {driver} is loaded, but no GPU is visible: check nvidia-smi, and "
            "start containers with --gpus all."
        )
    branch = (driver or "").partition(".")[0]
    # Fovea's extras install packages for CUDA 13, so this is the default.
    cuda = 12 if _OF_CUDA_12 & packages.keys() else 13
    if branch.isdecimal() and int(branch) < (least := _MIN_DRIVER[cuda]):
        yield (
            f"NVIDIA driver {driver} is too old for TensorRT with CUDA {cuda}: install driver "
            f"R{least} or newer (nvidia-smi shows the version)."
        )


def _list_missing_packages(packages: Mapping[str, str], toolkit: str | None) -> Iterator[str]:
    if "cuda-bindings" not in packages:
        yield f"TensorRT engines do not run without cuda-bindings: {install('cuda-bindings')}."
    if "pycuda" not in packages:
        first = (
            ""
            if toolkit
            else (
                "install a CUDA 13 toolkit and a C++ compiler, which pip needs to compile pycuda, "
                "then "
            )
        )
        yield (
            f"TensorRT engines do not run without pycuda: {first}{install('pycuda')}; or use "
            "docker/gpu.Dockerfile, which includes pycuda."
        )


def _show(machine: Machine, findings: tuple[Advice, ...]) -> None:
    console = Console()
    table = Table(show_header=False, box=None)
    for name, value in _rows(machine):
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    console.print(table)
    console.print()
    for finding in findings:
        mark = "[red]✗[/red]" if finding.fatal else "[yellow]![/yellow]"
        console.print(f"{mark} {escape(finding.text)}", soft_wrap=True, highlight=False)
    if not findings:
        console.print("[green]✓[/green] No problems found.")


def _rows(machine: Machine) -> list[tuple[str, str]]:
    cpu, memory = machine.cpu, machine.memory
    features = "unknown" if cpu.features is None else ", ".join(cpu.features) or "none that help"
    backends = [f"{b.name} {b.version or 'not installed'}" for b in machine.backends]
    gpus = [f"{gpu.name}, {gpu.memory_mib} MiB" for gpu in machine.gpus]
    packages = [f"{name} {version}" for name, version in machine.gpu_packages.items()]
    return [
        ("processor", cpu.name),
        ("cores", f"{cpu.usable} usable of {cpu.cores}"),
        ("instructions", features),
        ("memory", f"{memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f}"),
        ("/dev/shm", f"{memory.shared / 2**30:.1f} GiB"),
        ("backends", "\n".join(backends)),
        ("GPU", "\n".join(gpus) or "none"),
        ("NVIDIA driver", machine.driver or "none"),
        ("GPU packages", "\n".join(packages) or "none"),
        ("CUDA toolkit", machine.cuda_toolkit or "none"),
    ]
