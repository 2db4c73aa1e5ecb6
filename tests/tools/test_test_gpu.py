"""`make test-gpu` as far as it goes without a GPU: what it says, and what it keeps of a run."""

import json
import subprocess
import sys

import pytest
from tests.engines.shared_library import compile_library
from tools import test_gpu
from tools.test_gpu import STEPS, Step, read, rejection

ROOT = test_gpu.ROOT
TESTS = """
import os, pytest

def test_passes(record_property): record_property("images a second", 12.5)
def test_fails(): assert False, "no kernel"
def test_skips(): pytest.skip("absent")
def test_crashes(): os.kill(os.getpid(), 11)
"""


def look(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """By a Python that has nothing but its standard library."""
    command = [sys.executable, "-S", "-m", "tools.test_gpu", *options]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def driver(folder, code: int, count: int) -> dict[str, str]:
    """The environment of a machine whose driver says that."""
    source = f"""
        extern "C" int cuInit(unsigned) {{ return {code}; }}
        extern "C" int cuDeviceGetCount(int* count) {{ *count = {count}; return 0; }}
    """
    compile_library(folder / "libcuda.so.1", source)
    return {"LD_LIBRARY_PATH": str(folder), "PATH": str(folder)}


def test_where_no_gpu_is_it_says_so_before_anything_is_installed(tmp_path):
    if rejection() is None:
        pytest.skip("there is a GPU")
    for options in ((), ("--look",), ("device",)):
        done = look({}, *options)
        assert done.returncode == 1
        assert done.stderr.startswith("make test-gpu proves nothing here: ")
        assert "nvidia-smi" in done.stderr


@pytest.mark.real
@pytest.mark.parametrize(
    ("code", "count", "says"),
    [
        (35, 1, "does not start (CUDA error 35)"),
        (0, 0, "lists no GPU"),
        (0, 1, "there is no CUDA toolkit: put nvcc of CUDA 13 on the path"),
    ],
)
def test_what_the_driver_says_is_told(tmp_path, code, count, says):
    done = look(driver(tmp_path, code, count), "--look")
    assert done.returncode == 1
    assert says in done.stderr


def test_an_unknown_step_is_told(tmp_path):
    done = look({}, "sped")
    assert done.returncode == 2
    assert "no step is called 'sped': they are machine, device," in done.stderr


def test_every_file_of_the_gpu_is_in_a_step():
    named = {argument for step in STEPS for argument in step.arguments}
    files = {str(each.relative_to(ROOT)) for each in (ROOT / "tests/gpu").glob("test_*.py")}
    assert files == {name for name in named if name.endswith(".py")}


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Runs steps, each of one test; what is kept of them, and how it ended."""
    file = tmp_path / "test_four.py"
    file.write_text(TESTS)
    monkeypatch.setattr(test_gpu, "rejection", lambda: None)
    monkeypatch.setattr(test_gpu, "ROOT", tmp_path)
    monkeypatch.setattr(test_gpu, "KEPT", tmp_path / "kept.json")

    def steps(*names: str):
        made = [
            Step(name, f"that it {name}", ("-p", "no:cacheprovider", f"{file}::test_{name}"))
            for name in names
        ]
        monkeypatch.setattr(test_gpu, "STEPS", tuple(made))
        monkeypatch.setattr(sys, "argv", ["test_gpu"])
        end = ""
        try:
            test_gpu.main()
        except SystemExit as error:
            end = str(error)
        return json.loads((tmp_path / "kept.json").read_text())["steps"], end

    return steps


@pytest.mark.parametrize(
    ("name", "reason"),
    [("fails", "no kernel"), ("crashes", "ended by SIGSEGV"), ("skips", "nothing ran")],
)
def test_it_stops_at_the_first_step_that_proves_nothing(steps, capfd, name, reason):
    kept, end = steps("passes", name, "passes")
    assert [each["status"] for each in kept] == ["passed", "failed", "not run"]
    assert kept[0]["figures"] == {"test_passes": {"images a second": "12.5"}}
    assert (kept[0]["passed"], kept[1]["passed"]) == (1, 0)
    assert end.startswith(f"step {name} failed: ")
    assert reason in end
    told = capfd.readouterr().out
    assert "1/3 passes: that it passes" in told
    assert "test_passes: images a second = 12.5" in told
    assert "3/3" not in told


def test_a_run_without_a_failure_ends_well(steps):
    kept, end = steps("passes", "passes")
    assert end == ""
    assert [each["status"] for each in kept] == ["passed", "passed"]


def test_a_report_that_is_not_there_has_nothing(tmp_path):
    assert read(tmp_path / "absent.xml")["passed"] == 0
