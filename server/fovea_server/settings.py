"""The settings of the server. No other module of the project reads the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from fovea_preprocess.errors import InvalidOption
from fovea_server.log_lines import LogFormat
from fovea_server.setting_types import (
    HostNames,
    Hosts,
    Origins,
    Places,
    RootPath,
    Texts,
    links_a_service,
)

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_EVERY_ADDRESS = ("0.0.0.0", "::", "")

OTHER_NAMES = {
    "model_repository": ("repository", "model_store"),
    "http_address": ("host",),
    "http_port": ("port",),
    "keys_file": ("keys",),
    "max_inflight_mb": ("max_held_mb",),
}
"""Maps settings to their alternative names, as flags and as environment variables."""

# Variables that other programs read: clients (API key, URL) and docker-compose.yml.
_OF_OTHERS = frozenset(("FOVEA_API_KEY", "FOVEA_URL", "FOVEA_BIND", "FOVEA_EXTRAS"))


class ModelControlMode(StrEnum):
    """How the server chooses the models that it loads. The values are Triton's."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


def flag(name: str) -> str:
    """Return the command-line flag of a setting, for example --http-port for http_port."""
    return "--" + name.replace("_", "-")


def _port_above(port: int, by: int) -> int:
    """Return the number of a port plus `by`. Port 0 (any free port) stays 0."""
    return port + by if port else 0


class _Environment(EnvSettingsSource):
    """Reads settings from the environment.

    Some variables have alternative names, such as FOVEA_PORT.
    """

    def __call__(self) -> dict[str, object]:
        found = {
            name: self.env_vars[f"fovea_{other}"]
            for name, others in OTHER_NAMES.items()
            for other in others
            if name in self.settings_cls.model_fields and f"fovea_{other}" in self.env_vars
        }
        found |= super().__call__()
        return {k: v for k, v in found.items() if not links_a_service(f"{k}", str(v))}


class Listening(BaseSettings):
    """The settings of HTTP and gRPC that `fovea health` needs to connect to the server."""

    model_config = SettingsConfigDict(env_prefix="FOVEA_", extra="forbid", frozen=True)

    @classmethod
    def from_flags(cls, given: dict[str, Any]) -> Self:
        """Create settings from flags. The environment supplies settings without a flag.

        Raises:
            InvalidOption: a setting is invalid. The message contains its name.
        """
        try:
            return cls(**given)
        except ValidationError as error:
            raise InvalidOption(_sentence(error.errors()[0])) from None

    allow_http: bool = Field(True, description="serve HTTP")
    http_address: str = Field("127.0.0.1", description="address of HTTP; 0.0.0.0 listens on all")
    http_port: int = Field(8000, ge=0, le=65535, description="port of HTTP")
    http_max_input_size: int = Field(
        64 << 20, ge=1, description="largest request body in bytes, also after decompression"
    )
    http_restricted_api: Texts = Field(
        (),
        description=(
            "APIS:KEY=VALUE: requests to these APIs need the header KEY with this value; KEY@FILE "
            "reads the value from a file, so that other users cannot see it; may be repeated"
        ),
    )
    http_server_cert: Path | None = Field(None, description="certificate for HTTPS, PEM")
    http_server_key: Path | None = Field(None, description="private key of the certificate, PEM")
    cors_origin: Origins = Field(
        (),
        description=("web origin whose pages may call the HTTP API; * allows all; may be repeated"),
    )
    allowed_host: HostNames = Field(
        (),
        description="public host name of the server; localhost, IP addresses and local names "
        "always work; * allows all; may be repeated",
    )
    root_path: RootPath = Field(
        "",
        description=(
            "path prefix that the proxy adds, such as /vision; /openapi.json uses it; default: "
            "X-Forwarded-Prefix"
        ),
    )
    page: bool = Field(True, description="serve the web page at /; --no-page turns it off")
    api: Texts = Field(
        (),
        description="also serve another API: deepstack, roboflow, label-studio or frigate-zmq; "
        "NAME=MODEL sets its default model; may be repeated",
    )
    frigate_address: str = Field(
        "tcp://127.0.0.1:5555",
        description="address for Frigate's ZMQ detector: tcp://HOST:PORT or ipc://PATH",
    )
    label_studio_url: str | None = Field(
        None, description="URL of Label Studio; default the URL that it sends when it connects"
    )
    label_studio_token: str | None = Field(
        None, description="token of a Label Studio user; requires --label-studio-url"
    )

    allow_grpc: bool = Field(True, description="serve gRPC")
    grpc_address: str = Field(
        default_factory=lambda data: data["http_address"],
        description="address of gRPC; default the HTTP address",
    )
    grpc_port: int = Field(
        default_factory=lambda data: _port_above(data["http_port"], 1),
        ge=0,
        le=65535,
        description="port of gRPC; default: the HTTP port + 1",
    )
    grpc_restricted_protocol: Texts = Field(
        (),
        description="PROTOCOLS:KEY=VALUE or PROTOCOLS:KEY@FILE: as --http-restricted-api; "
        "may be repeated",
    )
    grpc_infer_response_compression_level: Literal["none", "low", "medium", "high"] = Field(
        "none", description="compression of gRPC responses"
    )
    grpc_use_ssl: bool = Field(False, description="serve gRPC over TLS")
    grpc_use_ssl_mutual: bool = Field(False, description="also require client certificates")
    grpc_server_cert: Path | None = Field(None, description="certificate for gRPC, PEM")
    grpc_server_key: Path | None = Field(None, description="private key of the certificate, PEM")
    grpc_root_cert: Path | None = Field(
        None, description="authority that signs the clients' certificates, PEM"
    )
    grpc_keepalive_time: int = Field(
        7_200_000, ge=0, description="milliseconds between pings to a client"
    )
    grpc_keepalive_timeout: int = Field(
        20_000, ge=0, description="milliseconds to wait for the response to a ping"
    )
    grpc_keepalive_permit_without_calls: bool = Field(
        False, description="also ping clients without open calls"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read flags first, then the environment, and no other source."""
        return init_settings, _Environment(settings_cls)


class Settings(Listening):
    """Settings of the server. Each setting is a flag and an environment variable FOVEA_<NAME>.

    If Triton has the same setting, the name is Triton's.
    """

    model_repository: Places = Field(
        # The same value as DEFAULT_REPOSITORY of fovea_engines, which is not imported, because the
        # import is too slow for `fovea health`.
        (Path("repository"),),
        min_length=1,
        description="folder of models, or the URL of a store (s3://BUCKET/PREFIX, gs://, az://, "
        "hf://, https://); may be repeated if model names differ",
    )
    model_name: str | None = Field(
        None,
        description="name of the model, if the repository holds one model only (VERSION/model.*), "
        "as with KServe",
    )
    repository_cache: Path | None = Field(
        None,
        description="folder for copies of remote repositories; default ~/.cache/fovea/repositories",
    )
    repository_max_gb: float = Field(
        64.0, gt=0, description="largest remote repository to copy, GiB"
    )
    model_control_mode: ModelControlMode = Field(
        ModelControlMode.NONE,
        description="when to load models: none: all at start; poll: also when the repository "
        "changes; explicit: --load-model, and on request",
    )
    load_model: Texts = Field(
        (), description="model to load at start in explicit mode; * loads all; may be repeated"
    )
    repository_poll_secs: float = Field(
        15.0, gt=0, description="seconds between checks of the repository in poll mode"
    )
    model_config_name: str = Field(
        "",
        description="use configs/NAME.pbtxt of a model, if it exists, instead of its config.pbtxt",
    )
    disable_auto_complete_config: bool = Field(
        False, description="do not complete config.pbtxt; do not serve models without one"
    )
    default_max_batch_size: int = Field(
        4,
        ge=0,
        description="max_batch_size of models with a batch dimension, unless config.pbtxt sets it",
    )
    model_load_thread_count: int = Field(
        2, ge=1, description="number of models to load at the same time"
    )
    strict_readiness: bool = Field(
        True,
        description="report the server as ready only when all models to load at start are ready",
    )
    exit_on_error: bool = Field(False, description="stop when a model fails to load at start")
    drain_secs: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description=(
            "seconds after SIGTERM during which the server still accepts requests, but reports "
            "that it is not ready, so that load balancers send no more"
        ),
    )
    exit_timeout_secs: float = Field(
        30.0, ge=0, description="seconds to finish accepted requests after that"
    )
    id: str = Field("triton", description="server name in the metadata; some clients check it")
    rebuild: bool = Field(
        False, description="rebuild TensorRT engines that do not fit this GPU or TensorRT"
    )
    threads: int | None = Field(None, ge=1, description="cores to use; default all")
    allow_code: bool = Field(
        False,
        description="run heads in Python files (`fovea build --head my_head.py`); anyone who can "
        "write to the repository can then run code",
    )

    keys_file: Path | None = Field(
        None,
        description=(
            "key file of `fovea key`. All requests except health and the page then need a key. "
            "The server rereads the file after changes"
        ),
    )
    quota_file: Path | None = Field(
        None,
        description="file for used quotas; default KEYS_FILE.used",
    )
    no_keys: bool = Field(
        False,
        description="allow everything to other machines, not only predict and health; for a "
        "server behind a gateway that checks requests",
    )
    jwt_issuer: str | None = Field(
        None,
        description="URL of an OpenID Connect provider; its tokens are accepted as keys",
    )
    jwt_audience: str | None = Field(None, description="required audience of the tokens")
    jwt_scope_claim: str = Field(
        "scope",
        description=("claim that has the scopes; dots for nested claims, e.g. realm_access.roles"),
    )

    allow_metrics: bool = Field(True, description="serve metrics for Prometheus")
    metrics_address: str = Field(
        default_factory=lambda data: data["http_address"],
        description="address of the metrics; default the HTTP address",
    )
    metrics_port: int = Field(
        default_factory=lambda data: _port_above(data["http_port"], 2),
        ge=0,
        le=65535,
        description="port of the metrics; default: the HTTP port + 2",
    )
    metrics_interval_ms: int = Field(
        2000, ge=1, description="milliseconds between measurements of CPU and GPU"
    )

    allow_client_shm: bool = Field(
        False, description="allow clients to use shared memory of this machine"
    )
    cache_config: str | None = Field(
        None, description="local,size=BYTES: response cache, for models that enable it"
    )

    trace_config: Texts = Field(
        (),
        description="triton,file=FILE, level=TIMESTAMPS, rate=N, count=N or "
        "triton,log-frequency=N: write timestamps of requests into a file; may be repeated",
    )

    otel: bool = Field(
        False,
        description="send traces to an OpenTelemetry collector over OTLP; set its URL in OTEL_... "
        "variables",
    )
    otel_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of requests to trace, unless the caller decides",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level to log; debug includes health probes and scrapes"
    )
    # The limit is Triton's, because Triton stores this setting as an int32.
    log_verbose: int = Field(0, ge=0, lt=2**31, description="above 0: as --log-level=debug")
    log_info: bool = Field(True, description="log events, not only warnings and errors")
    log_warning: bool = Field(True, description="log warnings")
    log_error: bool = Field(True, description="log errors")
    log_access: bool = Field(True, description="log every request, with its status and time")
    log_format: LogFormat = Field(
        "default", description="default: local times; ISO8601: UTC; json: one object per line, UTC"
    )
    log_file: Path | None = Field(None, description="log file; default stderr")

    max_inflight_mb: float = Field(
        512.0,
        gt=0,
        description="memory for the bodies and responses of all requests in flight, MiB",
    )
    max_image_mb: float = Field(64.0, gt=0, description="largest encoded image, MiB")
    max_megapixels: float = Field(64.0, gt=0, description="largest image, megapixels")
    max_images: int = Field(64, ge=1, description="maximum number of images per request")
    body_timeout_s: float = Field(
        20.0,
        gt=0,
        description=("seconds in which a request body must arrive, unless it keeps 8 KiB/s"),
    )

    max_queue: int = Field(
        256,
        ge=1,
        description="maximum number of requests in flight per model; each image counts",
    )
    decode_threads: int | None = Field(
        None,
        ge=1,
        description="threads per model to decode images for a GPU; default one per core",
    )
    max_queue_delay_ms: float = Field(
        0.0,
        ge=0,
        le=10_000,
        description="milliseconds to wait for more images before a partial batch runs on a GPU",
    )

    track_idle_s: float = Field(
        60.0, gt=0, description="seconds without a frame until track ids are dropped"
    )
    allow_url: bool = Field(False, description="fetch images by URL for requests")
    url_allow_private: bool = Field(
        False, description="also fetch from private addresses (cameras on the LAN)"
    )
    url_allow_host: Hosts = Field(
        (),
        description=(
            "allow image URLs of this host, address or network, such as 127.0.0.1 or "
            "192.168.1.0/24; may be repeated"
        ),
    )
    url_timeout_s: float = Field(5.0, gt=0, description="seconds for one fetch, with redirects")

    capture: Path | None = Field(
        None,
        description=(
            "folder for captured images and results; rules choose the images, and without this "
            "option nothing is captured"
        ),
    )
    capture_rule: Texts = Field(
        ("score 0.3..0.5",),
        description="images to capture, unless fovea.toml has rules: 'score 0.3..0.5', 'classes "
        "person,dog', 'empty', 'rate 1%' or 'unlike'; may be repeated",
    )
    capture_max_gb: float = Field(
        1.0, gt=0, description="maximum size of the captures, GiB; the oldest are deleted first"
    )
    capture_days: float = Field(30.0, gt=0, description="days until a captured image is deleted")

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.load_model and self.model_control_mode is not ModelControlMode.EXPLICIT:
            raise ValueError(
                "--load-model chooses models in explicit mode only: give "
                "--model-control-mode=explicit too, or leave --load-model out to load every model"
            )
        if self.no_keys and (self.keys_file is not None or self.jwt_issuer is not None):
            raise ValueError("--no-keys contradicts --keys and --jwt-issuer: leave one of them out")
        usual_rule = type(self).model_fields["capture_rule"].default
        if self.capture is None and self.capture_rule != usual_rule:
            raise ValueError("--capture-rule has no effect without --capture DIR: add --capture")
        for one, other in combinations(self.listening, 2):
            port = getattr(self, f"{one}_port")
            addresses = {getattr(self, f"{name}_address") for name in (one, other)}
            overlap = len(addresses) == 1 or not addresses.isdisjoint(_EVERY_ADDRESS)
            # Skip port 0, because each server with port 0 gets a different free port.
            if overlap and port == getattr(self, f"{other}_port") != 0:
                raise ValueError(
                    f"--{one}-port and --{other}-port are both {port}: give one of them another "
                    "port"
                )
        return self

    @property
    def max_inflight_bytes(self) -> int:
        """Return `max_inflight_mb`, converted to bytes."""
        return int(self.max_inflight_mb * 2**20)

    @property
    def max_image_bytes(self) -> int:
        """Return `max_image_mb`, converted to bytes."""
        return int(self.max_image_mb * 2**20)

    @property
    def listening(self) -> list[str]:
        """Return the names of the enabled servers: "http", "grpc" and "metrics"."""
        return [name for name in ("http", "grpc", "metrics") if getattr(self, f"allow_{name}")]


def _sentence(error: ErrorDetails) -> str:
    """Return a message with the invalid setting and the reason, or with settings that conflict."""
    if error["type"] == "value_error":
        reason = str(error["ctx"]["error"])
        return f"{flag(str(error['loc'][0]))}: {reason}" if error["loc"] else reason
    # Remove pydantic's explanation of how it parsed the text.
    must = error["msg"].partition(", unable")[0].replace("Input should", "it must")
    return f"{flag(str(error['loc'][0]))} is '{error['input']}'; {must}"


def ignored_variables() -> Iterator[tuple[str, bool]]:
    """Find environment variables that begin with FOVEA_ but have no effect.

    Yields:
        (name, linked) for each variable. `linked` is True if Kubernetes has set the variable of a
        setting to the address of a Service. It is False if no setting has this name.
    """
    known = {*Settings.model_fields, *(other for each in OTHER_NAMES.values() for other in each)}
    for name, value in sorted(os.environ.items()):
        if name.upper().startswith("FOVEA_") and name not in _OF_OTHERS:
            setting, linked = name.lower().removeprefix("fovea_"), links_a_service(name, value)
            # Kubernetes sets FOVEA_PORT, which is a setting, for every Service called fovea.
            if setting in Settings.model_fields if linked else setting not in known:
                yield name, linked


def silence_grpc() -> None:
    """Disable gRPC's own log lines on stderr, unless the environment enables them.

    Call this function before the import of gRPC, which reads only the environment.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
