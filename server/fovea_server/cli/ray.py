"""`fovea ray`: deploys a repository to a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fovea_engines.backends.installing import install_extra
from fovea_preprocess.errors import InvalidOption
from fovea_server.cli.command import Command, Group

program = typer.Typer(
    name="ray",
    cls=Group,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@program.callback()
def ray() -> None:
    """Deploy a repository to a Ray cluster.

    Ray starts, scales, moves and replaces the server processes. docs/how-to/cluster.md explains how
    to set up three nodes. Ray's own commands `serve status` and `serve shutdown` show and end the
    deployment.
    """


@program.command(cls=Command)
def deploy(
    context: typer.Context,
    repository: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|ADDRESS",
            envvar="FOVEA_MODEL_REPOSITORY",
            help=(
                "Model repository: a folder that exists on every node, or the URL of a store, "
                "e.g. s3://bucket/prefix. Default: the entry `repository` of the --config file."
            ),
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help=(
                "YAML file with the settings of the servers, and the number of replicas of each "
                "model. docs/how-to/cluster.md has an example. Without a file, all settings have "
                "their defaults."
            ),
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            envvar="RAY_ADDRESS",
            help="Address of the Ray cluster; auto means the cluster that runs on this machine.",
        ),
    ] = "auto",
) -> None:
    """Start or change the deployment of a repository.

    Each model becomes a deployment of Ray Serve in a running cluster. The command ends when all
    models are ready, and lists the models that cannot start. The old deployments respond to
    requests until the new deployments are ready.

    Example: fovea ray deploy --repository s3://bucket/models --config fovea-ray.yaml
    """
    given = {} if config is None else _read(config)
    source = context.get_parameter_source("repository")
    if source is not None and source.name == "COMMANDLINE" and "repository" in given:
        raise InvalidOption(f"give the repository here or in {config}, not both")
    if repository is not None:
        given = {"repository": repository, **given}
    if "repository" not in given:
        raise InvalidOption("give --repository, or a --config with `repository` in it")
    try:
        from fovea_server.ray.config import ClusterConfig
        from fovea_server.ray.deploy import connect, deploy
    except ModuleNotFoundError as error:
        raise InvalidOption(
            f"`fovea ray` needs packages that are not installed ({error.name}): "
            f"{install_extra('ray')}"
        ) from error
    wanted = ClusterConfig.parse(given)
    connect(address)
    for found in deploy(wanted, typer.echo):
        typer.echo(f"Serving at {found}")


def _read(path: Path) -> Mapping[str, Any]:
    """Read a YAML file; raise InvalidOption with the line number of a syntax error."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise InvalidOption(
            f"--config needs the package {error.name}, which is not installed: "
            f"{install_extra('ray')}"
        ) from error
    try:
        found = yaml.safe_load(path.read_text("utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise InvalidOption(f"{path} must contain at least `repository: FOLDER`")
    return found
