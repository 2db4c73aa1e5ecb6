"""The compose file of `fovea init`: valid, and its service is that of docker-compose.yml."""

import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_it_follows_the_compose_specification_and_the_projects_own(root: Path) -> None:
    file = root / "server/fovea_server/cli/starter/compose.yaml"
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*checker, str(file)], check=True)
    [starter] = YAML(typ="safe").load(file)["services"].values()
    own = YAML(typ="safe").load(root / "docker-compose.yml")["services"]["cpu"]
    # The project also has monitoring, which finds the server by an alias.
    differing = {"profiles", "build", "pull_policy", "volumes", "networks"}
    assert {k: v for k, v in starter.items() if k not in differing} == {
        k: v for k, v in own.items() if k not in differing
    }
    # No registry has the image, and the commands that make it are those of docs/deploy.md.
    assert starter["pull_policy"] == "never"
    made = f"docker build -f {own['build']['dockerfile']} -t {own['image']} ."
    assert (root / own["build"]["dockerfile"]).is_file()
    deploy = (root / "docs/deploy.md").read_text()
    assert all(made in text for text in (file.read_text(), deploy))
    keys, volume = starter["volumes"]
    assert keys in own["volumes"]
    assert (volume["source"], volume["target"]) == ("./repository", "/repository")
    assert volume["read_only"]
