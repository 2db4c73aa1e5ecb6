"""`fovea serve`: every model of a repository, for every client of Triton."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import ValidationError

from fovea_preprocess.errors import InvalidOption, ModelNotReady
from fovea_server.commands.effect import check_effect
from fovea_server.commands.flags import with_flags
from fovea_server.commands.program import Command
from fovea_server.commands.triton_flags import WITHOUT_EFFECT, flag, translated
from fovea_server.settings import Listening, Settings

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from fovea_server.models.registry import Registry

Kind = TypeVar("Kind", bound=Listening)

SWITCHES = frozenset(
    flag(name) for name, field in Settings.model_fields.items() if field.annotation is bool
)


class SwitchCommand(Command):
    """Reads switches as Triton does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As usual, but a switch may stand alone, or have its value after = or a space."""
        return super().parse_args(ctx, list(_with_values(args)))


class ServeCommand(SwitchCommand):
    """Lists the flags of Triton that have no effect."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """As usual, and the flags that only tune Triton."""
        super().format_options(ctx, formatter)
        with formatter.section("Taken from Triton's command lines, without effect"):
            flags = ", ".join(map(flag, WITHOUT_EFFECT))
            # click would break them at their hyphens.
            lines = wrap(flags, formatter.width - 2, break_on_hyphens=False)
            formatter.write("".join(f"  {line}\n" for line in lines))


def _with_values(args: list[str]) -> Iterator[str]:
    """Switches as --switch=value, everything else as it is."""
    coming = [*args, ""]
    while len(coming) > 1:
        arg = coming.pop(0)
        if arg not in SWITCHES:
            yield arg
        elif coming[0].lower() in ("true", "false", "1", "0"):
            yield f"{arg}={coming.pop(0)}"
        else:
            yield f"{arg}=true"


@with_flags
def serve(
    repository: Annotated[
        Path | None,
        typer.Argument(help="Folder of models, as `fovea build` makes it; or --repository."),
    ] = None,
    **given: Any,
) -> None:
    """Serve every model of a repository over HTTP and gRPC.

    The flags are Triton's wherever Triton has the thing. Each can also be given in the
    environment, as FOVEA_ and its name in capitals (FOVEA_HTTP_PORT for --http-port); a flag wins.

    Example: fovea serve repository --host 0.0.0.0 --model-control-mode poll
    """
    from fovea_server.commands.variables import warn_of_ignored_variables
    from fovea_server.extensions.log_settings import LogSettings
    from fovea_server.logs import SERVER_LOG, set_up_logging

    settings = read_settings(repository, given)
    set_up_logging(settings.log_level, file=settings.log_file, verbose=settings.log_verbose)
    switches = {name: getattr(settings, name) for name in ("log_info", "log_warning", "log_error")}
    off = {name: on for name, on in switches.items() if not on}
    LogSettings(SERVER_LOG).update({"log_format": settings.log_format, **off})
    # However it ends: what was logged is read before the error that ends the program.
    with closing(SERVER_LOG):
        warn_of_ignored_variables()
        _serve(settings)


def _serve(settings: Settings) -> None:
    from fovea_server.dataplane.service import Service
    from fovea_server.listen import bind_all
    from fovea_server.models.registry import Registry
    from fovea_server.tls import check_grpc_files, https_files

    registry = Registry(settings)
    listeners = bind_all(settings)
    # What can be wrong with the settings is told before any model is loaded.
    service = Service.of(settings, registry)
    https_files(settings)
    check_grpc_files(settings)
    registry.start()
    # However it ends: a load that is under way would outlive the interpreter.
    with closing(registry):
        # Only now: FastAPI and gRPC take as long to import as a model to load, and they overlap.
        from fovea_server.serve import make_server

        server = make_server(service)
        if settings.exit_on_error:
            _require_every_model(registry)
        server.run(listeners)


def _require_every_model(registry: Registry) -> None:
    """Wait until the start is over.

    Raises:
        ModelNotReady: a model could not be loaded.
    """
    while not registry.started:
        time.sleep(0.02)
    if failed := registry.unserved:
        raise ModelNotReady(f"{'; '.join(failed)}: stopping, as --exit-on-error asks")


def read_settings(repository: Path | None, given: dict[str, Any]) -> Settings:
    """What was said on the command line; all else from the environment, or as it is by default.

    Args:
        repository: the argument.
        given: the options by the name of their setting; None or [] where one was not given.

    Raises:
        InvalidOption: a setting is wrong, or has no effect.
    """
    said = translated(given)
    if repository is not None and "model_repository" in said:
        raise InvalidOption("give the repository as an argument or as an option, not both")
    if repository is not None:
        said["model_repository"] = [repository]
    settings = validated(Settings, said)
    check_effect(settings, said)
    return settings


def validated(kind: type[Kind], said: dict[str, Any]) -> Kind:
    """Settings of what was said; all else from the environment, or as it is by default.

    Raises:
        InvalidOption: one is wrong.
    """
    try:
        return kind(**said)
    except ValidationError as error:
        raise InvalidOption(_sentence(error.errors()[0])) from None


def _sentence(error: ErrorDetails) -> str:
    """What is wrong with a setting, and which; or with several that do not go together."""
    if error["type"] == "value_error":
        told = str(error["ctx"]["error"])
        return f"{flag(str(error['loc'][0]))}: {told}" if error["loc"] else told
    # Without pydantic's account of how it read the text.
    must = error["msg"].partition(", unable")[0].replace("Input should", "it must")
    return f"{flag(str(error['loc'][0]))} is '{error['input']}'; {must}"
