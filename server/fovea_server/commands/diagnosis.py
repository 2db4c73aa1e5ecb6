"""What will not work on a machine, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fovea_engines.backends.installing import install, install_extra
from fovea_engines.backends.registry import CPU_BACKENDS, GPU_BACKENDS
from fovea_server.commands.machine import Machine

# What running a TensorRT engine takes beside TensorRT; and what is of no use without a GPU, as
# cuda-bindings and TensorRT for RTX are, which compile for others.
_TO_RUN = {"pycuda", "cuda-bindings"}
_IDLE = {"pycuda", "tensorrt"}

LEAST_MEMORY = 512 * 2**20
LEAST_SHARED_MEMORY = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that will not work as well as it could.

    Attributes:
        fatal: serving on the CPU is impossible.
        text: what it is and how to mend it, one sentence.
    """

    fatal: bool
    text: str


def diagnose(machine: Machine) -> tuple[Finding, ...]:
    """Everything worth mending, fatal things first; empty on a healthy machine."""
    found = (*_backends(machine), *_processor(machine), *_memory(machine), *_gpu(machine))
    return tuple(sorted(found, key=lambda finding: not finding.fatal))


def _backends(machine: Machine) -> Iterator[Finding]:
    backends = [backend for backend in machine.backends if backend.name in CPU_BACKENDS]
    if all(backend.problem is not None for backend in backends):
        command = install(*(backend.name for backend in backends))
        yield Finding(True, f"No engine can run, as no backend is installed: {command}.")
        return
    for backend in backends:
        if backend.problem is not None:
            yield Finding(
                False, f"Engines built for {backend.name} cannot be served: {backend.problem}."
            )


def _processor(machine: Machine) -> Iterator[Finding]:
    cpu = machine.cpu
    if cpu.features is not None and "AVX2" not in cpu.features:
        yield Finding(
            False,
            "The processor shows no AVX2, so inference is several times slower than it need be: "
            "in a virtual machine, pass the host's CPU model through.",
        )
    if cpu.usable < cpu.cores:
        yield Finding(
            False,
            f"Only {cpu.usable} of {cpu.cores} cores may be used: raise the container's CPU limit "
            "or the affinity mask if the others are meant for Fovea.",
        )


def _memory(machine: Machine) -> Iterator[Finding]:
    memory = machine.memory
    if memory.available < LEAST_MEMORY:
        yield Finding(
            False,
            f"Only {memory.available / 2**20:.0f} MiB of memory are free, and a served model needs "
            "about 300: stop something else or serve smaller models.",
        )
    if memory.shared < LEAST_SHARED_MEMORY:
        yield Finding(
            False,
            f"/dev/shm holds {memory.shared / 2**20:.0f} MiB, too little for clients that pass "
            "tensors through shared memory: start the container with --shm-size=1g.",
        )


def _gpu(machine: Machine) -> Iterator[Finding]:
    if machine.driver is not None and not machine.gpus:
        yield Finding(
            False,
            f"NVIDIA driver {machine.driver} is loaded but no GPU answers: check nvidia-smi, and "
            "in a container start it with --gpus all.",
        )
    installed = {backend.name for backend in machine.backends if backend.version}
    if machine.gpus and not installed.intersection(GPU_BACKENDS):
        yield Finding(
            False,
            f"{machine.gpus[0].name} stays idle, as no TensorRT is installed: "
            f"{install_extra('tensorrt')}.",
        )
    elif machine.gpus and (missing := _TO_RUN - machine.gpu_packages.keys()):
        yield Finding(
            False,
            f"TensorRT engines do not run without {' and '.join(sorted(missing))}: "
            f"{install_extra('tensorrt')}.",
        )
    if not machine.gpus and (idle := _IDLE & machine.gpu_packages.keys()):
        yield Finding(
            False,
            f"{', '.join(sorted(idle))} are installed but there is no GPU to use them: models run "
            "on the CPU.",
        )
