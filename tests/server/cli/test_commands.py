"""The table of commands: each is there, and the help has its first line."""

from importlib import import_module

import pytest
import typer
from typer.testing import CliRunner

from fovea_server.cli.main import COMMANDS, app

TARGETS = {name: target for panel in COMMANDS.values() for name, target in panel.items()}


@pytest.mark.parametrize(("name", "target"), TARGETS.items())
def test_a_command_is_a_function_or_a_program(name, target):
    module, _, attribute = target.partition(":")
    found = getattr(import_module(module), attribute)
    assert isinstance(found, typer.Typer) or callable(found)
    done = CliRunner().invoke(app, [name, "--help"], prog_name="fovea")
    assert done.output.startswith(f"Usage: fovea {name}")


def test_the_help_describes_every_command():
    lines = CliRunner().invoke(app, ["--help"], prog_name="fovea").output.splitlines()
    for name in TARGETS:
        [line] = [line for line in lines if line.startswith(f"  {name} ")]
        assert len(line.split(maxsplit=1)[1]) > 20
