"""Prove the TensorRT backend on the GPU of this machine, in about ten minutes: `make test-gpu`.

    python -m tools.test_gpu                  all steps, in order
    python -m tools.test_gpu machine device   only these
    python -m tools.test_gpu --look           only see whether there is a GPU

It stops at the first step that fails, and tests/last_gpu_run.json keeps what came of each. A step
is a run of pytest, in a process of its own: TensorRT may crash it. Where there is no GPU it ends at
once, so it imports nothing but the standard library before it knows.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests" / "last_gpu_run.json"
_INSTALLED = ROOT / ".venv" / "gpu"


@dataclass(frozen=True)
class Step:
    """A run of pytest: what it proves, and its arguments."""

    name: str
    proves: str
    arguments: tuple[str, ...]


def _files(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/gpu/test_{name}.py" for name in names)


STEPS = (
    Step("machine", "the driver, CUDA and TensorRT fit each other", _files("machine")),
    Step(
        "device",
        "copies, CUDA graphs, the letterbox and memory of clients work; batches overlap",
        _files("device", "letterbox", "session", "session_letterbox", "shared_memory"),
    ),
    Step(
        "engines",
        "engines in FP32, FP16 and INT8 find what ONNX Runtime finds, also two batches at once; "
        "they are rebuilt for another release; their layers have precisions",
        (*_files("tensorrt"), "-k", "tiny or row or release or layers"),
    ),
    Step("speed", "what a profile for single images and CUDA graphs are worth", _files("speed")),
    Step(
        "lifetime",
        "memory comes back, the context stays, and a load that does not fit fails cleanly",
        _files("lifetime"),
    ),
    Step(
        "bindings",
        "TensorRT does what its stand-ins in the tests do; loads and recordings keep apart",
        _files("bindings"),
    ),
    Step(
        "serving",
        "versions are replaced under load without a failed request, and SIGTERM ends it cleanly",
        _files("serving"),
    ),
    Step("others", "plans of Ultralytics and trtexec are served", _files("others")),
)


def rejection() -> str | None:
    """Return the reason why nothing can be proved here; None where a GPU answers."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (
            "there is no NVIDIA driver here (libcuda.so.1): nvidia-smi must list a GPU, also in a "
            "container (docker run --gpus all)"
        )
    count = ctypes.c_int()
    if (code := driver.cuInit(0)) or (code := driver.cuDeviceGetCount(ctypes.byref(count))):
        return f"NVIDIA's driver does not start (CUDA error {code}): see what nvidia-smi says"
    if not count.value:
        return "NVIDIA's driver lists no GPU: see what nvidia-smi says"
    return None


def toolkit_missing() -> str | None:
    """Return the reason why pycuda cannot be compiled; None where it can be, or is there."""
    found = shutil.which("nvcc") or os.environ.get("CUDA_ROOT")
    if found or _INSTALLED.exists() or importlib.util.find_spec("pycuda"):
        return None
    return (
        "pycuda has to be compiled, and there is no CUDA toolkit: put nvcc of CUDA 13 on the path, "
        "or set CUDA_ROOT"
    )


def run(step: Step, folder: Path) -> dict[str, Any]:
    """Run a step; return its status, seconds, counts, figures, and what failed or was skipped."""
    report = folder / f"{step.name}.xml"
    options = ("-x", "-q", "-o", "junit_family=xunit1", f"--junitxml={report}")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *step.arguments], cwd=ROOT, check=False
    )
    found = {"seconds": round(time.monotonic() - began, 1), **read(report)}
    if done.returncode < 0:
        found["failed"] = [f"ended by {signal.Signals(-done.returncode).name}", *found["failed"]]
    elif not found["failed"] and not found["passed"]:
        found["failed"] = ["nothing ran", *found["skipped"]]
    elif not found["failed"] and done.returncode:
        found["failed"] = [f"pytest ended with {done.returncode}"]
    status = "failed" if found["failed"] else "passed"
    return {"step": step.name, "proves": step.proves, "status": status, **found}


def read(report: Path) -> dict[str, Any]:
    """Read a JUnit report: tests that passed, and what the others say; none where it is absent."""
    found: dict[str, Any] = {"passed": 0, "failed": [], "skipped": [], "figures": {}}
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
    for case in cases:
        name = case.get("name", "")
        for each in case.iter("property"):
            found["figures"].setdefault(name, {})[each.get("name")] = each.get("value")
        failed = [f"{name}: {each.get('message')}" for each in case if each.tag in _FAILED]
        skipped = [f"{name}: {each.get('message')}" for each in case.iter("skipped")]
        found["failed"] += failed
        found["skipped"] += skipped
        found["passed"] += not (failed or skipped)
    return found


_FAILED = ("failure", "error")


def head_commit() -> str:
    """Return the commit of the tree; "" where there is no git, as in a bare container."""
    if shutil.which("git") is None:
        return ""
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    """Run the steps that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(s.name for s in STEPS))
    parser.add_argument("--look", action="store_true", help="only see whether there is a GPU")
    given = parser.parse_args()
    known = {step.name: step for step in STEPS}
    if unknown := set(given.steps) - known.keys():
        parser.error(f"no step is called {min(unknown)!r}: they are {', '.join(known)}")
    if (reason := rejection()) is not None:
        sys.exit(f"make test-gpu proves nothing here: {reason}")
    if given.look:
        sys.exit(toolkit_missing())
    steps = [known[name] for name in given.steps] or list(STEPS)
    results: list[dict[str, Any]] = []
    origin = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": head_commit(),
    }
    with tempfile.TemporaryDirectory() as folder:
        for number, step in enumerate(steps, 1):
            sys.stdout.write(f"\n{number}/{len(steps)} {step.name}: {step.proves}\n")
            sys.stdout.flush()
            results.append(run(step, Path(folder)))
            failed = results[-1]["status"] == "failed"
            left = [{"step": s.name, "status": "not run"} for s in steps[number:]]
            KEPT.write_text(json.dumps(origin | {"steps": results + left}, indent=1) + "\n")
            if failed:
                break
    sys.stdout.write("\n" + table(results) + f"\n{KEPT.relative_to(ROOT)} has all of it\n")
    if failed:
        sys.exit(f"step {step.name} failed: {'; '.join(results[-1]['failed'][:3])}")


def table(results: list[dict[str, Any]]) -> str:
    """Lay out the steps that ran, with their figures."""
    lines = []
    for each in results:
        counts = f"{each['passed']} tests in {each['seconds']:.0f} s"
        lines.append(f"{each['status']:<7} {each['step']:<9} {counts}: {each['proves']}")
        for test, figures in each["figures"].items():
            lines += [f"        {test}: {name} = {value}" for name, value in figures.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
