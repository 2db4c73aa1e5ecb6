"""`fovea doctor`: what it reads from a machine, what it makes of it, what it prints."""

import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import typer
from typer.testing import CliRunner

from fovea_engines import device
from fovea_engines.backends.backend import BackendInfo
from fovea_engines.backends.installing import install_extra
from fovea_engines.backends.registry import BACKENDS, CPU_BACKENDS
from fovea_engines.device import Memory, memory
from fovea_server.cli.doctor import (
    Cpu,
    Gpu,
    Machine,
    cpu_features,
    cuda_toolkit,
    diagnose,
    doctor,
    driver_version,
    look,
)

GIB = 2**30
MIB = 2**20
HEALTHY = Machine(
    cpu=Cpu("Xeon", 8, 8, ("AVX2", "AVX512", "AVX512-VNNI")),
    memory=Memory(16 * GIB, 8 * GIB, GIB),
    backends=(
        BackendInfo("onnxruntime", "1.31.1", None),
        BackendInfo("openvino", "2026.4.1", None),
    ),
    driver=None,
    gpus=(),
    gpu_packages={},
)


def file(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_instruction_sets_come_from_the_flags(tmp_path: Path) -> None:
    flags = "fpu sse2 avx avx2 fma avx512f avx512_vnni amx_tile amx_int8"
    file(tmp_path, "proc/cpuinfo", f"processor\t: 0\nflags\t\t: {flags}\nbugs\t: spectre_v1\n")
    assert cpu_features(tmp_path) == ("AVX2", "AVX512", "AVX512-VNNI", "AMX-INT8")


def test_a_processor_without_flags_is_unknown_not_bad(tmp_path: Path) -> None:
    file(tmp_path, "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd\n")
    assert cpu_features(tmp_path) is None
    assert cpu_features(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Fri Jan 10 12:00:00 UTC 2026",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build",
    ],
)
def test_the_driver_of_either_kind_is_found(tmp_path: Path, line: str) -> None:
    file(tmp_path, "proc/driver/nvidia/version", f"{line}\nGCC version:  gcc version 12.3.0\n")
    assert driver_version(tmp_path) == "570.86.10"
    assert driver_version(tmp_path / "nowhere") is None


def test_gpus_are_those_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(device.Gpu("NVIDIA H200", "90"), 143771 << 20)]
    monkeypatch.setattr("fovea_server.cli.doctor.visible_gpus", lambda: found)
    assert look().gpus == (Gpu("NVIDIA H200", 143771),)


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ],
)
def test_memory_is_cut_to_the_containers_limit(tmp_path: Path, limit: str, used: str) -> None:
    file(tmp_path, f"sys/fs/cgroup/{limit}", f"{MIB}\n")
    file(tmp_path, f"sys/fs/cgroup/{used}", f"{MIB // 4}\n")
    assert memory(tmp_path) == Memory(MIB, MIB - MIB // 4, 0)


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used"),
    [
        ("0::/fovea.service", "fovea.service", "memory.max", "memory.current"),
        ("4:memory:/a/b", "memory/a", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_memory_is_cut_to_the_limit_of_a_service(
    tmp_path: Path, line: str, folder: str, limit: str, used: str
) -> None:
    file(tmp_path, "proc/self/cgroup", f"3:cpuset:/\n{line}\n")
    file(tmp_path, f"sys/fs/cgroup/{folder}/{limit}", f"{MIB}\n")
    file(tmp_path, f"sys/fs/cgroup/{folder}/{used}", f"{MIB // 4}\n")
    assert memory(tmp_path) == Memory(MIB, MIB - MIB // 4, 0)


def test_a_container_without_a_limit_has_all_memory(tmp_path: Path) -> None:
    file(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    assert memory(tmp_path).total == psutil.virtual_memory().total


GPU = (Gpu("NVIDIA L4", 23034),)
WITH_TENSORRT = (*HEALTHY.backends, BackendInfo("tensorrt", "11.4.0.106", None))


PACKAGES = {"tensorrt": "11.4.0.106", "pycuda": "2026.1", "cuda-bindings": "13.5.0"}
OF_CUDA_12 = {**PACKAGES, "tensorrt": "10.16.1.11", "tensorrt-cu12": "10.16.1.11"}
ON_GPU = replace(
    HEALTHY, driver="580.65.06", gpus=GPU, backends=WITH_TENSORRT, gpu_packages=PACKAGES
)


RTX = BackendInfo("tensorrt-rtx", "1.7.1.116", None)
OF_RTX = {"tensorrt-rtx-cu13-bindings": "1.7.1.116", "cuda-bindings": "13.5.0"}
NO_TENSORRT = BackendInfo("tensorrt", None, f"not installed: {install_extra('tensorrt')}")
NO_OPENVINO = BackendInfo("openvino", None, "not installed: pip install openvino")
OLD_TENSORRT = (*HEALTHY.backends, BackendInfo("tensorrt", "9.0", "too old"))


def without(*names: str) -> Machine:
    left = {name: version for name, version in PACKAGES.items() if name not in names}
    return replace(ON_GPU, gpu_packages=left)


def having(*names: str) -> Machine:
    return replace(ON_GPU, gpu_packages={**PACKAGES, **dict.fromkeys(names, "1.0")})


@pytest.mark.parametrize(
    "machine",
    [
        HEALTHY,
        ON_GPU,
        replace(ON_GPU, driver="600.10"),
        replace(ON_GPU, driver="unknown"),
        # As in WSL.
        replace(ON_GPU, driver=None),
        replace(ON_GPU, driver="535.104.05", gpu_packages=OF_CUDA_12),
        # It builds engines for other machines.
        replace(HEALTHY, backends=(*HEALTHY.backends, RTX, NO_TENSORRT), gpu_packages=OF_RTX),
    ],
)
def test_a_machine_with_all_that_it_takes_has_nothing_to_mend(machine: Machine) -> None:
    assert diagnose(machine) == ()


def test_all_that_lacks_on_a_new_gpu_machine_is_said_at_once() -> None:
    packages = {"tensorrt-rtx-cu13-bindings": "1.7.1.116", "onnxruntime-gpu": "1.27.0"}
    machine = replace(
        HEALTHY,
        driver="570.86.10",
        gpus=GPU,
        backends=(*HEALTHY.backends, RTX),
        gpu_packages=packages,
    )
    texts = [finding.text for finding in diagnose(machine)]
    for text, word in zip(
        texts, ("R580", "cuda-bindings", "pycuda", "onnxruntime-gpu"), strict=True
    ):
        assert word in text


def test_the_toolkit_is_found_by_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda_toolkit(tmp_path) is None
    file(tmp_path, "usr/local/cuda/include/cuda.h", "")
    assert cuda_toolkit(tmp_path) == f"{tmp_path}/usr/local/cuda/include/cuda.h"
    file(tmp_path, "nvcc", "#!/bin/sh\n")
    (tmp_path / "nvcc").chmod(0o755)
    assert cuda_toolkit(tmp_path) == f"{tmp_path}/nvcc"


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (replace(HEALTHY, cpu=Cpu("Atom", 4, 4, ())), "AVX2"),
        (replace(HEALTHY, cpu=replace(HEALTHY.cpu, usable=2)), "2 of 8"),
        (replace(HEALTHY, memory=Memory(GIB, GIB // 4, GIB)), "256 MiB"),
        (replace(HEALTHY, memory=Memory(GIB, GIB, 64 * MIB)), "--shm-size"),
        (replace(HEALTHY, driver="580.65.06"), "--gpus all"),
        (replace(HEALTHY, driver="580.65.06", gpus=GPU), "NVIDIA L4"),
        (replace(ON_GPU, driver="570.86.10"), "R580"),
        (replace(ON_GPU, gpu_packages=OF_CUDA_12, driver="530.41.03"), "R535"),
        (without("pycuda"), "a CUDA 13 toolkit and a C++ compiler"),
        (replace(without("pycuda"), cuda_toolkit="/usr/bin/nvcc"), "install pycuda"),
        (without("cuda-bindings"), "install cuda-bindings"),
        (having("onnxruntime-gpu"), "onnxruntime-gpu"),
        (replace(HEALTHY, gpu_packages={"onnxruntime-gpu": "1.27.0"}), "uninstall both"),
        (having("tensorrt-cu12", "tensorrt-cu13"), "overwrite"),
        (replace(ON_GPU, backends=OLD_TENSORRT), "too old"),
        (replace(HEALTHY, gpu_packages={"tensorrt": "10.13"}), "tensorrt"),
        (replace(HEALTHY, backends=(HEALTHY.backends[0], NO_OPENVINO)), "pip install openvino"),
    ],
)
def test_each_shortcoming_is_one_sentence_and_not_fatal(machine: Machine, says: str) -> None:
    [finding] = diagnose(machine)
    assert says in finding.text
    assert finding.text.endswith(".")
    assert not finding.fatal


def test_only_a_machine_without_backends_cannot_serve() -> None:
    memory = Memory(GIB, GIB // 4, GIB)
    first, *others = diagnose(replace(HEALTHY, backends=(NO_OPENVINO,), memory=memory))
    assert first.fatal
    assert "pip install openvino" in first.text
    assert not any(finding.fatal for finding in others)


def test_this_machine_can_serve() -> None:
    machine = look()
    assert 1 <= machine.cpu.usable <= machine.cpu.cores
    assert 0 < machine.memory.available <= machine.memory.total
    assert all(one.version for one in machine.backends if one.name in CPU_BACKENDS)


def test_the_command_prints_for_people_and_for_programs() -> None:
    app = typer.Typer()
    app.command()(doctor)
    shown = CliRunner().invoke(app, [])
    assert shown.exit_code == 0, shown.output
    assert "onnxruntime" in shown.output
    document = json.loads(CliRunner().invoke(app, ["--json"]).output)
    assert document["cpu"]["usable"] == look().cpu.usable
    assert [backend["name"] for backend in document["backends"]] == list(BACKENDS)
    assert all(set(finding) == {"fatal", "text"} for finding in document["findings"])
