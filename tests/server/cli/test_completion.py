"""Completion in a shell: of commands, of models in the repository, and of named values."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forked import on_path
from tests.system import program

pytestmark = pytest.mark.real

# What a complete command imports to do its work, and completion has no use for.
HEAVY = {"onnx", "onnxruntime", "openvino", "grpc", "fastapi", "uvicorn", "tensorrt"}


@pytest.fixture
def shell(monkeypatch, tmp_path, demo_repository):
    """A folder with the demo repository, where `fovea` is on the path: runs a script in it."""
    (tmp_path / "repository").symlink_to(demo_repository)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FOVEA_MODEL_REPOSITORY", raising=False)

    def run(*command: str) -> list[str]:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    return run


@pytest.fixture
def bash(shell, monkeypatch, tmp_path_factory):
    """Press Tab in bash at the end of a line: the completions."""
    monkeypatch.setenv("PATH", on_path(tmp_path_factory.mktemp("program")))
    # It finds the shell among its parents, which a fork does not have.
    unforked = Path(sys.executable).with_name("fovea")

    def press(line: str) -> list[str]:
        words = line.split(" ")
        quoted = " ".join(f"'{word}'" for word in words)
        return shell(
            "bash",
            "-c",
            f'eval "$({unforked} --show-completion)"\n'
            f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
            '_fovea_completion fovea; printf "%s\\n" "${COMPREPLY[@]}"',
        )

    return press


def test_commands_and_models(bash):
    assert bash("fovea in") == ["init", "inspect", "index"]
    for command in ("predict", "eval", "bench", "tune", "inspect", "diff"):
        assert bash(f"fovea {command} ") == ["digits"], command
    assert bash("fovea predict dig") == ["digits"]
    assert bash("fovea predict --repository nothere ") == []


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("fovea build --backend o", ["onnxruntime", "openvino"]),
        ("fovea build --precision ", ["auto", "fp32", "bf16", "fp16", "int8"]),
        ("fovea build --head yolox", ["yolox", "yolox-decoded"]),
        ("fovea build --preprocess st", ["stretch", "stretched"]),
        ("fovea build --labels ", ["coco", "coco91", "imagenet"]),
        ("fovea edit --labels i", ["imagenet"]),
        ("fovea demo --task s", ["segment"]),
        ("fovea serve --log-format j", ["json"]),
        ("fovea build --excl", ["--exclude-nodes"]),
        ("fovea build --no-n", ["--no-nms-tail"]),
        # The shell completes files then.
        ("fovea build mod", []),
        ("fovea build --images im", []),
    ],
)
def test_values_of_options(bash, line, first):
    assert bash(line) == first


def test_the_repository_of_the_command_line_is_the_one_that_is_read(bash, tmp_path):
    (tmp_path / "other" / "people" / "1").mkdir(parents=True)
    assert bash("fovea predict --repository other ") == ["people"]


def test_fish(shell):
    program("fish", package="fish")
    press = "fovea --show-completion | source; complete -C 'fovea predict '"
    assert shell("fish", "-c", press) == ["digits"]


def test_zsh(shell, monkeypatch):
    program("zsh", package="zsh")
    for variable, value in (("FOVEA_COMPLETE", "complete_zsh"), ("TYPER_COMPLETE_ARGS", "fovea p")):
        monkeypatch.setenv(f"_{variable}", value)
    [asked] = [line for line in shell("zsh", "-c", "fovea") if "predict" in line]
    assert "predict" in asked


def test_it_is_installed_for_the_shell_that_asks(shell, tmp_path):
    assert "bash" in shell("bash", "-c", "fovea --install-completion; true")
    assert "fovea.sh" in (tmp_path / ".bashrc").read_text()
    assert "complete_bash" in (tmp_path / ".bash_completions" / "fovea.sh").read_text()


@pytest.mark.parametrize(("words", "light"), [("fovea pred", True), ("fovea predict ", False)])
def test_no_runtime_is_imported(words, light):
    environment = os.environ | {
        "_FOVEA_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    command = [sys.executable, "-X", "importtime", "-m", "fovea_server.cli.main"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert imported & (HEAVY | ({"numpy", "rich", "httpx"} if light else set())) == set()
