"""`fovea ray deploy`: what is typed wrong, before a cluster is asked."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_no_repository(fovea):
    code, _, stderr = fovea("ray", "deploy")
    assert code == 2
    assert "give --repository, or a --config with `repository` in it" in stderr


def test_two_repositories(fovea, tmp_path):
    (tmp_path / "a.yaml").write_text("repository: models")
    code, _, stderr = fovea("ray", "deploy", "--repository", "other", "--config", "a.yaml")
    assert code == 2
    assert "give the repository here or in a.yaml, not both" in stderr


def test_a_file_that_is_no_yaml(fovea, tmp_path):
    (tmp_path / "a.yaml").write_text("models: {digits: [")
    code, _, stderr = fovea("ray", "deploy", "--config", "a.yaml")
    assert code == 2
    assert "a.yaml is not YAML" in stderr
    (tmp_path / "a.yaml").write_text("digits")
    assert "a.yaml has no keys" in fovea("ray", "deploy", "--config", "a.yaml")[2]


def test_help_needs_no_ray(fovea):
    code = "import sys; import fovea_server.cli.ray; print('ray' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
    assert "deploy" in fovea("ray", "--help")[1]


def test_packages_that_are_missing_are_named(tmp_path):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ModuleNotFoundError(name='ray')")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "fovea_server.cli.main"),
            *("ray", "deploy", "--repository", "models"),
        ],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 2
    assert "`fovea ray` needs packages that are not installed (ray): " in done.stderr
    assert "[ray]" in done.stderr


def test_configurations_of_0_1_find_the_applications():
    import fovea_cluster.ray
    import fovea_server.ray

    assert fovea_cluster.ray.build is fovea_server.ray.build
    assert fovea_cluster.ray.build_fronts is fovea_server.ray.build_fronts
