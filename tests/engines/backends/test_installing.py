"""Commands that install what is missing: run, or as far as they go without an index."""

import json
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fovea_engines.backends import installing
from fovea_engines.backends.installing import install
from fovea_engines.backends.registry import BACKENDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
PIP = (sys.executable, "-m", "pip")
ADVICE = (
    "from fovea_engines.backends.installing import install_extra; print(install_extra('tensorrt'))"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of what a wheel is built from, in a folder whose name needs quotes."""
    folder = tmp_path_factory.mktemp("source") / "my fovea"
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("preprocess", "engines", "server", "client"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def pip(*arguments: str) -> None:
    quiet = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    done = subprocess.run([*PIP, *arguments, *quiet], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def advice(target: Path) -> list[str]:
    """What the installation in a folder says, in words."""
    done = subprocess.run(
        [sys.executable, "-c", ADVICE],
        env={"PYTHONPATH": str(target)},
        cwd=target,
        capture_output=True,
        text=True,
        check=True,
    )
    return shlex.split(done.stdout)


def test_a_folder_and_a_wheel_are_installed_again_with_the_extra(source, tmp_path):
    pip("wheel", str(source), "--wheel-dir", str(tmp_path))
    [wheel] = tmp_path.glob("fovea_serve-*.whl")
    for number, origin in enumerate((source, wheel)):
        target = tmp_path / str(number)
        pip("install", "--target", str(target), str(origin))
        said = advice(target)
        assert said == [*PIP, "install", f"{origin}[tensorrt]"]
        pip(*said[3:], "--dry-run", "--no-index")
    # As in an image, whose wheel stayed in the stage that built it.
    wheel.unlink()
    said = advice(target)
    assert said[:4] == [*PIP, "install"]
    named = [Requirement(each).name for each in said[4:]]
    assert {"tensorrt", "pycuda", "cuda-bindings"} <= set(named)
    assert "fovea-serve" not in named


def recorded(folder: Path, monkeypatch, url: object) -> None:
    """Let Fovea be installed from somewhere, as PEP 610 records it."""
    requires = (
        "Requires-Dist: numpy>=2\n"
        "Requires-Dist: tensorrt-rtx>=1.3; sys_platform == 'linux' and extra == 'rtx'\n"
        "Requires-Dist: more[all]<9,>=2; extra == 'rtx'\n"
        "Requires-Dist: elsewhere; sys_platform == 'nowhere' and extra == 'other'\n"
    )
    (folder / "METADATA").write_text(f"Name: fovea-serve\nVersion: 1\n{requires}")
    if url is not None:
        (folder / "direct_url.json").write_text(json.dumps(url))
    monkeypatch.setattr(installing, "distribution", lambda name: PathDistribution(folder))


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ({"url": "file://HERE", "dir_info": {"editable": True}}, ["-e", "HERE[rtx]"]),
        ({"url": "file://HERE", "dir_info": {}}, ["HERE[rtx]"]),
        (
            {"url": "https://h/f.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            ["fovea-serve[rtx] @ git+https://h/f.git@c0ffee"],
        ),
        (
            {
                "url": "ssh://git@h/f.git",
                "vcs_info": {"vcs": "git", "commit_id": "c0ffee"},
                "subdirectory": "fovea",
            },
            ["fovea-serve[rtx] @ git+ssh://git@h/f.git@c0ffee#subdirectory=fovea"],
        ),
        (
            {"url": "https://h/fovea_serve-1-py3-none-any.whl", "archive_info": {}},
            ["fovea-serve[rtx] @ https://h/fovea_serve-1-py3-none-any.whl"],
        ),
        (
            {"url": "file:///f.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            ["fovea-serve[rtx] @ git+file:///f.git@c0ffee"],
        ),
        (
            {"url": "https://h/f.zip", "archive_info": {}, "subdirectory": "a/b"},
            ["fovea-serve[rtx] @ https://h/f.zip#subdirectory=a/b"],
        ),
        (
            {"url": "file://HERE/METADATA", "archive_info": {}, "subdirectory": "a"},
            ["fovea-serve[rtx] @ file://HERE/METADATA#subdirectory=a"],
        ),
        ({"url": "file://HERE", "dir_info": {}, "subdirectory": "a"}, ["HERE/a[rtx]"]),
        (
            {"url": "https://me:secret@h/f.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            ["fovea-serve[rtx] @ git+https://h/f.git@c0ffee"],
        ),
        (
            {"url": "https://token@h:1/f.whl", "archive_info": {}},
            ["fovea-serve[rtx] @ https://h:1/f.whl"],
        ),
        ({"url": "file:///gone/f.whl", "archive_info": {}}, None),
        ({"url": "https://h/f.git", "vcs_info": {"vcs": "git"}}, None),
        ({"url": "file://HERE", "dir_info": None}, None),
        ({"dir_info": {}}, None),
        ({"url": 1}, None),
        (["https://h/f.git"], None),
        (None, None),
    ],
)
def test_every_source_has_its_command(tmp_path, monkeypatch, url, arguments):
    text = json.dumps(url).replace("HERE", str(tmp_path))
    recorded(tmp_path, monkeypatch, json.loads(text))
    # Anything else would be looked up in an index under a name that anybody may register.
    expected = arguments or ["tensorrt-rtx>=1.3", "more[all]<9,>=2"]
    said = shlex.split(installing.install_extra("rtx"))
    assert said == [*PIP, "install", *(each.replace("HERE", str(tmp_path)) for each in expected)]
    assert all(Requirement(each) for each in said[4:] if " @ " in each)


def test_a_record_that_is_not_json_is_none(tmp_path, monkeypatch):
    recorded(tmp_path, monkeypatch, None)
    (tmp_path / "direct_url.json").write_bytes(b"{\xff")
    assert installing.install_extra("rtx").endswith(" 'tensorrt-rtx>=1.3' 'more[all]<9,>=2'")


def test_an_extra_with_nothing_for_this_system_is_not_advised(tmp_path, monkeypatch):
    recorded(tmp_path, monkeypatch, None)
    assert installing.install_extra("other").startswith("it is not available for ")


def test_an_environment_without_pip(monkeypatch):
    monkeypatch.setattr(installing, "find_spec", lambda name: None)
    assert install("a>1").endswith(f"uv pip install --python {shlex.quote(sys.executable)} 'a>1'")


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_backend_is_advised_by_a_name_that_anybody_may_register(backend):
    for word in shlex.split(BACKENDS[backend].installation):
        assert not word.startswith("fovea-serve[") or " @ " in word
