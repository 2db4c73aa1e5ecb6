"""`fovea serve`: serves the models of a repository over HTTP and gRPC, as Triton does."""

from __future__ import annotations

import logging
import re
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic.warnings import UnsupportedFieldAttributeWarning

from fovea_engines.repository.locking import remove_abandoned
from fovea_preprocess.entry_points import removed_tables
from fovea_preprocess.errors import InvalidOption, ModelNotReady
from fovea_server.auth.restrictions import is_loopback
from fovea_server.cli.command import program_of
from fovea_server.cli.flags import (
    SwitchCommand,
    warn_of_ignored_variables,
    with_flags,
)
from fovea_server.cli.shutdown_watchdog import ShutdownWatchdog
from fovea_server.cli.triton_flags import WITHOUT_EFFECT, translate_flags
from fovea_server.integrations.registry import parse_apis
from fovea_server.settings import ModelControlMode, Settings, flag

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

    from fovea_server.dataplane.service import Service

log = logging.getLogger(__name__)

_LISTED = 10
_NAMES = {"http": "HTTP", "grpc": "gRPC", "metrics": "the metrics"}
# Prefixes of flags that Triton does not have. If such a flag has no effect, this is an error.
_MEANT = ("frigate_", "jwt_", "label_studio_", "quota_", "url_")
_TLS_FILES = ("grpc_server_cert", "grpc_server_key", "grpc_root_cert")


# Settings whose flags `--help` shows; `--help-all` shows the flags of all settings.
_EVERYDAY = (
    *("model_repository", "model_control_mode", "load_model", "threads", "allow_code"),
    *("drain_secs", "exit_on_error"),
    *("http_address", "http_port", "http_server_cert", "http_server_key", "cors_origin"),
    *("allowed_host", "page", "api", "grpc_port", "metrics_port", "otel"),
    *("keys_file", "no_keys", "jwt_issuer"),
    *("log_level", "log_format", "log_file"),
    *("max_inflight_mb", "max_image_mb", "max_queue", "max_queue_delay_ms"),
    *("allow_url", "capture", "capture_rule"),
)
HELP_ALL = "fovea.help_all"


class ServeCommand(SwitchCommand):
    """A command whose help shows the common flags, or all flags for --help-all."""

    def list_sections(self, ctx: Context) -> dict[str, list[tuple[str, str]]]:
        """Return the options to show, by the title of their panel: the common ones, or all."""
        sections = super().list_sections(ctx)
        if not ctx.meta.get(HELP_ALL):
            rare = {flag(name) for name in Settings.model_fields} - {*map(flag, _EVERYDAY)}
            sections = {
                title: [row for row in rows if re.split("[ ,]", row[0])[0] not in rare]
                for title, rows in sections.items()
            }
        return {title: rows for title, rows in sections.items() if rows}

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the options; with --help-all, also write the names of flags that have no effect."""
        super().format_options(ctx, formatter)
        if not ctx.meta.get(HELP_ALL):
            return
        with formatter.section("Accepted from Triton's command lines, without effect"):
            formatter.write_text(", ".join(map(flag, WITHOUT_EFFECT)))


def show_all_flags(context: typer.Context, requested: bool) -> None:
    """Print the help with all flags and exit, if `requested` is True."""
    if requested:
        context.meta[HELP_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


@with_flags
def serve(
    repository: Annotated[
        str | None,
        typer.Argument(
            metavar="REPOSITORY",
            help=(
                "Model repository: a folder of models, or the URL of a store, e.g. "
                "s3://bucket/prefix. It is the same as --model-repository."
            ),
        ),
    ] = None,
    *,
    help_all: Annotated[
        bool,
        typer.Option(
            "--help-all",
            callback=show_all_flags,
            is_eager=True,
            help=(
                f"Show the help of all {len(Settings.model_fields)} flags, and exit; --help shows "
                "only the most used flags."
            ),
        ),
    ] = False,
    **given: object,
) -> None:
    """Serve every model of a repository over HTTP and gRPC.

    A flag that Triton also has keeps Triton's name. You can also set each flag with an environment
    variable, e.g. FOVEA_HTTP_PORT for --http-port. A flag overrides its variable.

    Example: fovea serve repository --host 0.0.0.0 --model-control-mode poll
    """
    from fovea_server.logs import SERVER_LOG, SEVERITIES, set_up_logging

    settings = read_settings(repository, given)
    switches = settings.log_info, settings.log_warning, settings.log_error
    set_up_logging(
        settings.log_level,
        file=settings.log_file,
        verbose=settings.log_verbose,
        line_format=settings.log_format,
        off=[level for level, on in zip(SEVERITIES, switches, strict=True) if not on],
    )
    # The log is closed in any case, so that it is written before an error ends the program.
    with closing(SERVER_LOG):
        log.info("Fovea %s", version("fovea-serve"))
        warn_of_ignored_variables()
        for text in removed_tables():
            log.warning("%s", text)
        _serve(settings)


def _serve(settings: Settings) -> None:
    from fovea_server.app import build_app
    from fovea_server.listen import bind_all
    from fovea_server.tls import check_grpc_files, https_files

    remove_abandoned()
    # FastAPI would suppress this warning itself, but not in a thread-safe way.
    warnings.filterwarnings("ignore", category=UnsupportedFieldAttributeWarning)
    # Errors in the settings are reported here, before any model is loaded.
    app = build_app(settings)
    _check_models(app.service)
    https_files(settings)
    check_grpc_files(settings)
    listeners = bind_all(settings)
    _warn_of_open_doors(settings)
    watchdog = ShutdownWatchdog(settings.drain_secs + settings.exit_timeout_secs)
    watchdog.watch()
    app.registry.start()
    # The registry is closed in any case, because a load in progress would outlive the interpreter.
    with closing(app.registry):
        # Imported here, while models are loaded in a thread. Importing FastAPI and gRPC takes as
        # long as loading a model.
        from fovea_server.models.registry import freeze_heap
        from fovea_server.serve import make_server

        server = make_server(app, watchdog.begin)
        watchdog.watch_hang_ups(server.ask_to_reload)
        while settings.exit_on_error and not app.registry.started:
            time.sleep(0.02)
        if settings.exit_on_error and (failed := app.registry.unserved):
            raise ModelNotReady(f"{'; '.join(failed)}; the server stops because of --exit-on-error")
        # The registry freezes the heap when the models are loaded. If that was before the end of
        # the imports, the imported objects are not frozen yet.
        freeze_heap()
        server.run(listeners)


program = program_of("serve", serve, ServeCommand)


def _check_models(service: Service) -> None:
    """Check that the models for the APIs in `--api` exist.

    If models may be added later, a missing model is only logged.

    Raises:
        InvalidOption: a model is missing.
    """
    from fovea_server.models.source import Repositories

    settings = service.settings
    places = [place for place in settings.model_repository if isinstance(place, Path)]
    if len(places) < len(settings.model_repository):
        return  # the models of a remote store are known only after a pull
    known = Repositories(places, settings.model_name).models()
    for api, model in service.apis.items():
        if model is None or model in known:
            continue
        close = get_close_matches(model, known, 1)
        listed = ", ".join(known[:_LISTED]) or "none"
        advice = f"did you mean {close[0]}?" if close else f"its models are {listed}"
        text = f"--api {api}={model}: the repository has no such model; {advice}"
        if settings.model_control_mode is ModelControlMode.NONE:
            raise InvalidOption(text)
        log.warning("%s", text)


def _warn_of_open_doors(settings: Settings) -> None:
    """Log which operations clients may do without a key."""
    if settings.keys_file is not None or settings.jwt_issuer is not None:
        log.info("every request needs a key, except for health and the web page")
        plain = "grpc" in settings.listening and not settings.grpc_use_ssl
        if settings.http_server_cert and plain and not is_loopback(settings.grpc_address):
            log.warning(
                "gRPC at %s has no TLS, so keys and images cross the network unencrypted: set "
                "--grpc-use-ssl, --grpc-server-cert and --grpc-server-key, or --allow-grpc=false",
                settings.grpc_address,
            )
        return
    doors = [
        f"{_NAMES[name]} at {address}"
        for name in settings.listening
        if not is_loopback(address := getattr(settings, f"{name}_address"))
    ]
    if doors and settings.no_keys:
        log.info("every client may use all operations of %s (--no-keys)", " and ".join(doors))
    elif not doors:
        log.info("no keys are required: only programs on this machine can reach the server")
    else:
        log.warning(
            "%s: without a key, other machines may only predict and check health. To allow more, "
            "require keys (`fovea key add NAME`, --keys FILE), or use --no-keys behind a gateway "
            "that authenticates clients",
            " and ".join(doors),
        )


def read_settings(repository: str | None, given: dict[str, object]) -> Settings:
    """Make the settings from a command line.

    Args:
        repository: the argument of the command; None if it was not typed.
        given: values of the options, by the name of the setting; None or [] for an option that was
            not typed.

    Raises:
        InvalidOption: a setting is wrong, or has no effect.
    """
    typed = translate_flags(given)
    if repository is not None and "model_repository" in typed:
        raise InvalidOption("give the repository as an argument or as an option, not both")
    if repository is not None:
        typed["model_repository"] = [repository]
    settings = Settings.from_flags(typed)
    for name in typed:
        needed = _find_needed_flag(settings, name)
        if needed is None:
            continue
        if name in _TLS_FILES or name.startswith(_MEANT):
            raise InvalidOption(
                f"{flag(name)} has no effect without {needed}: add it, or leave {flag(name)} out"
            )
        # Command lines for Triton often configure servers that they also disable. Such command
        # lines must keep working, so this is only a warning.
        typer.echo(f"{flag(name)} has no effect without {needed}, so it is ignored", err=True)
    return settings


# Setting -> function that returns whether the setting has an effect, and the flag without which it
# has none.
_NEEDED: dict[str, tuple[Callable[[Settings], bool], str]] = {
    **dict.fromkeys(
        _TLS_FILES,
        (lambda given: given.grpc_use_ssl or given.grpc_use_ssl_mutual, "--grpc-use-ssl"),
    ),
    "grpc_root_cert": (lambda given: given.grpc_use_ssl_mutual, "--grpc-use-ssl-mutual"),
    "repository_poll_secs": (
        lambda given: given.model_control_mode is ModelControlMode.POLL,
        "--model-control-mode=poll",
    ),
    "frigate_address": (lambda given: _has_api(given, "frigate-zmq"), "--api frigate-zmq"),
    "label_studio_url": (lambda given: _has_api(given, "label-studio"), "--api label-studio"),
    "label_studio_token": (
        lambda given: _has_api(given, "label-studio") and given.label_studio_url is not None,
        "--label-studio-url",
    ),
    **dict.fromkeys(
        ("repository_cache", "repository_max_gb"),
        (
            lambda given: not all(isinstance(place, Path) for place in given.model_repository),
            "a store URL in --model-repository",
        ),
    ),
    "otel_ratio": (lambda given: given.otel, "--otel"),
    "quota_file": (lambda given: given.keys_file is not None, "--keys"),
    **dict.fromkeys(
        ("jwt_audience", "jwt_scope_claim"),
        (lambda given: given.jwt_issuer is not None, "--jwt-issuer"),
    ),
}


def _has_api(settings: Settings, name: str) -> bool:
    return name in parse_apis(settings.api)


def _find_needed_flag(settings: Settings, name: str) -> str | None:
    """Return the missing flag that a setting needs.

    Return None if the setting has an effect.
    """
    has_effect, needed = _NEEDED.get(name, (None, ""))
    if has_effect is not None and not has_effect(settings):
        return needed
    switch = "allow_http" if name in ("cors_origin", "page") else f"allow_{name.split('_')[0]}"
    # `http_address` has an effect without HTTP, because it is also the default address of the other
    # servers.
    if name == "http_address" or getattr(settings, switch, True):
        return None
    return flag(switch)
