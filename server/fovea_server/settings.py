"""The settings of the server. No other module of the project reads the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
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
            raise InvalidOption(_sentence(error.errors()[0], given)) from None

    allow_http: bool = Field(True, description="serve HTTP; --allow-http=false turns it off")
    http_address: str = Field(
        "127.0.0.1",
        description=(
            "IP address on which the HTTP server listens; 0.0.0.0 means all network interfaces"
        ),
    )
    http_port: int = Field(
        8000, ge=0, le=65535, description="TCP port of the HTTP server; 0 means any free port"
    )
    http_max_input_size: int = Field(
        64 << 20,
        ge=1,
        description="largest request body in bytes, for HTTP and gRPC, also after decompression",
    )
    http_restricted_api: Texts = Field(
        (),
        description=(
            "secret for HTTP APIs, as APIS:KEY=VALUE, e.g. "
            "model-repository,logging:admin-key=SECRET: requests to these APIs then require the "
            "header KEY with this value. KEY@FILE reads the value from a file, which hides it "
            "from other users of the machine. May be repeated"
        ),
    )
    http_server_cert: Path | None = Field(
        None,
        description=(
            "PEM file with the certificate for HTTPS; requires --http-server-key. Without it, the "
            "server uses HTTP"
        ),
    )
    http_server_key: Path | None = Field(
        None,
        description="PEM file with the private key of --http-server-cert, without a password",
    )
    cors_origin: Origins = Field(
        (),
        description=(
            "origin of web pages that may call the HTTP API, e.g. https://example.com; * allows "
            "all pages. May be repeated. By default, only the server's own page may call it"
        ),
    )
    allowed_host: HostNames = Field(
        (),
        description=(
            "public host name of the server, e.g. vision.example.com; requests with other public "
            "names in their Host header are rejected. localhost and IP addresses need no entry, "
            "nor do names of the local network, unless the server is bound to a loopback "
            "address. * allows all names. May be repeated"
        ),
    )
    root_path: RootPath = Field(
        "",
        description=(
            "path prefix under which a proxy serves this server, e.g. /vision, for /openapi.json. "
            "Default: the header X-Forwarded-Prefix of the request"
        ),
    )
    page: bool = Field(True, description="serve the web page at /; --no-page turns it off")
    api: Texts = Field(
        (),
        description=(
            "also serve the API of other software: deepstack, roboflow, label-studio or "
            "frigate-zmq. NAME=MODEL sets its default model, except for roboflow. May be repeated"
        ),
    )
    frigate_address: str = Field(
        "tcp://127.0.0.1:5555",
        description="address on which --api frigate-zmq listens: tcp://HOST:PORT or ipc://PATH",
    )
    label_studio_url: str | None = Field(
        None,
        description=(
            "with --api label-studio: URL of Label Studio. Default: the URL that Label Studio "
            "sends when it connects"
        ),
    )
    label_studio_token: str | None = Field(
        None,
        description=(
            "access token of a Label Studio user. The server downloads images with this token. "
            "Requires --label-studio-url"
        ),
    )

    allow_grpc: bool = Field(True, description="serve gRPC; --allow-grpc=false turns it off")
    grpc_address: str = Field(
        default_factory=lambda data: data["http_address"],
        description=(
            "IP address on which the gRPC server listens. Default: the value of --http-address"
        ),
    )
    grpc_port: int = Field(
        default_factory=lambda data: _port_above(data["http_port"], 1),
        ge=0,
        le=65535,
        description="TCP port of the gRPC server. Default: the HTTP port + 1",
    )
    grpc_restricted_protocol: Texts = Field(
        (),
        description=(
            "secret for gRPC APIs, as APIS:KEY=VALUE or APIS:KEY@FILE: calls to these APIs then "
            "require the metadata triton-grpc-protocol-KEY with this value. The APIs are the same "
            "as for --http-restricted-api. May be repeated"
        ),
    )
    grpc_infer_response_compression_level: Literal["none", "low", "medium", "high"] = Field(
        "none", description="compression level of gRPC responses"
    )
    grpc_use_ssl: bool = Field(
        False, description="use TLS for gRPC; requires --grpc-server-cert and --grpc-server-key"
    )
    grpc_use_ssl_mutual: bool = Field(
        False,
        description=(
            "use TLS for gRPC, and require certificates of clients; requires --grpc-root-cert, "
            "--grpc-server-cert and --grpc-server-key"
        ),
    )
    grpc_server_cert: Path | None = Field(
        None, description="PEM file with the certificate of the gRPC server, for --grpc-use-ssl"
    )
    grpc_server_key: Path | None = Field(
        None,
        description="PEM file with the private key of --grpc-server-cert, without a password",
    )
    grpc_root_cert: Path | None = Field(
        None,
        description=(
            "PEM file with the certificate of the authority that signs the clients' certificates, "
            "for --grpc-use-ssl-mutual"
        ),
    )
    grpc_keepalive_time: int = Field(
        7_200_000,
        ge=0,
        description="milliseconds between two keepalive pings of the gRPC server to a client",
    )
    grpc_keepalive_timeout: int = Field(
        20_000,
        ge=0,
        description=(
            "milliseconds to wait for the response to a gRPC keepalive ping; without a response, "
            "the server closes the connection"
        ),
    )
    grpc_keepalive_permit_without_calls: bool = Field(
        False, description="also send gRPC keepalive pings to clients that have no call in progress"
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
        description=(
            "model repository: a folder of models, or the URL of a store (s3://BUCKET/PREFIX, "
            "gs://, az://, hf:// or https://). May be repeated if all model names differ"
        ),
    )
    model_name: str | None = Field(
        None,
        description=(
            "name of the model, if the repository is the folder of a single model "
            "(VERSION/model.*), as in KServe. By default, each subfolder of the repository is a "
            "model"
        ),
    )
    repository_cache: Path | None = Field(
        None,
        description=(
            "folder for local copies of repositories in a store. Default: "
            "~/.cache/fovea/repositories"
        ),
    )
    repository_max_gb: float = Field(
        64.0,
        gt=0,
        description=(
            "largest size in GiB of a repository in a store; the server does not copy larger ones"
        ),
    )
    model_control_mode: ModelControlMode = Field(
        ModelControlMode.NONE,
        description=(
            "when to load models. none: all models at the start; poll: all models at the start, "
            "and changed models later; explicit: the models of --load-model at the start, and "
            "other models when a client requests it"
        ),
    )
    load_model: Texts = Field(
        (),
        description=(
            "with --model-control-mode explicit: name of a model to load at the start; * loads "
            "all models. May be repeated"
        ),
    )
    repository_poll_secs: float = Field(
        15.0,
        gt=0,
        description=(
            "with --model-control-mode poll: seconds between two checks of the repository for "
            "changes"
        ),
    )
    model_config_name: str = Field(
        "",
        description=(
            "name of an alternative configuration: a model with the file configs/NAME.pbtxt uses "
            "this file instead of config.pbtxt"
        ),
    )
    disable_auto_complete_config: bool = Field(
        False,
        description=(
            "reject models without a config.pbtxt, and do not fill in its missing values from the "
            "model"
        ),
    )
    default_max_batch_size: int = Field(
        4,
        ge=0,
        description=(
            "largest batch size of a model with a batch dimension, if the model was not built by "
            "`fovea build` and config.pbtxt does not set max_batch_size"
        ),
    )
    model_load_thread_count: int = Field(
        2, ge=1, description="largest number of models that are loaded at the same time"
    )
    strict_readiness: bool = Field(
        True,
        description=(
            "report the server as ready only if all its models are ready; false: as soon as "
            "loading at the start has ended, even if models failed"
        ),
    )
    exit_on_error: bool = Field(
        False,
        description=(
            "stop the server if a model fails to load at the start; false: serve the other models"
        ),
    )
    drain_secs: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description=(
            "seconds after SIGTERM during which the server still accepts requests, but reports "
            "that it is not ready, so that load balancers stop sending requests"
        ),
    )
    exit_timeout_secs: float = Field(
        30.0,
        ge=0,
        description=(
            "largest number of seconds to finish accepted requests after SIGTERM and "
            "--drain-secs; the server then exits"
        ),
    )
    id: str = Field(
        "triton",
        description="name of the server in its metadata (GET /v2); some clients require triton",
    )
    rebuild: bool = Field(
        False,
        description=(
            "rebuild TensorRT engines that were built for another GPU or another version of "
            "TensorRT, which takes minutes; false: such engines fail to load"
        ),
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="largest number of CPU cores that a model uses. Default: all cores",
    )
    allow_code: bool = Field(
        False,
        description=(
            "load models whose outputs are decoded by a Python file (`fovea build --head "
            "my_head.py`), and run this file. Anyone who can write to the repository can then run "
            "code on this machine"
        ),
    )

    keys_file: Path | None = Field(
        None,
        description=(
            "file of API keys, which `fovea key` writes. All requests then require a key, except "
            "for health checks and the web page. The server reads the file again after each change"
        ),
    )
    quota_file: Path | None = Field(
        None,
        description=(
            "file for the used part of each key's quota. Default: the name of the key file with "
            ".used appended"
        ),
    )
    no_keys: bool = Field(
        False,
        description=(
            "allow all requests from other machines without keys, for a server behind a gateway "
            "that authenticates clients. By default, other machines without a key may only "
            "predict and check health"
        ),
    )
    jwt_issuer: str | None = Field(
        None,
        description=(
            "URL of an OpenID Connect provider; requires --jwt-audience. All requests then "
            "require a token of this provider or a key, except for health checks and the web page"
        ),
    )
    jwt_audience: str | None = Field(
        None, description="audience (claim aud) that a token of --jwt-issuer must contain"
    )
    jwt_scope_claim: str = Field(
        "scope",
        description=(
            "claim of a token that lists its permissions (scopes). Write nested claims with dots, "
            "e.g. realm_access.roles"
        ),
    )

    allow_metrics: bool = Field(
        True, description="serve metrics for Prometheus; --allow-metrics=false turns them off"
    )
    metrics_address: str = Field(
        default_factory=lambda data: data["http_address"],
        description=(
            "IP address on which the metrics server listens. Default: the value of --http-address"
        ),
    )
    metrics_port: int = Field(
        default_factory=lambda data: _port_above(data["http_port"], 2),
        ge=0,
        le=65535,
        description="TCP port of the metrics server. Default: the HTTP port + 2",
    )
    metrics_interval_ms: int = Field(
        2000,
        ge=1,
        description="milliseconds between two measurements of CPU and GPU usage for the metrics",
    )

    allow_client_shm: bool = Field(
        False,
        description=(
            "allow clients on this machine to pass tensors in shared memory instead of in requests"
        ),
    )
    cache_config: str | None = Field(
        None,
        description=(
            "size of the response cache, as local,size=BYTES. The cache serves models with "
            "response_cache in config.pbtxt. Default: no cache"
        ),
    )

    trace_config: Texts = Field(
        (),
        description=(
            "write timestamps of requests to a file, as Triton does: triton,file=FILE and "
            "level=TIMESTAMPS enable this; rate=N traces one request in N; count=N stops after N "
            "traces; triton,log-frequency=N starts a new file after N traces. Repeat the flag for "
            "each part"
        ),
    )

    otel: bool = Field(
        False,
        description=(
            "send traces to an OpenTelemetry collector over OTLP. Set its URL in the standard "
            "variable OTEL_EXPORTER_OTLP_ENDPOINT"
        ),
    )
    otel_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description=(
            "with --otel: fraction of requests to trace, from 0 to 1. For a request with a "
            "traceparent header, the header decides"
        ),
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description=(
            "lowest severity that is logged; debug also logs health checks and requests for metrics"
        ),
    )
    # The limit is Triton's, because Triton stores this setting as an int32.
    log_verbose: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="Triton's verbosity: a number above 0 is the same as --log-level debug",
    )
    log_info: bool = Field(
        True,
        description=(
            "log messages of severity info, such as the start of the server; false: only warnings "
            "and errors"
        ),
    )
    log_warning: bool = Field(True, description="log warnings; false hides them")
    log_error: bool = Field(True, description="log errors; false hides them")
    log_access: bool = Field(
        True, description="log one line for each request, with its status and duration"
    )
    log_format: LogFormat = Field(
        "default",
        description=(
            "format of log lines. default: text with local times; ISO8601: text with UTC times; "
            "json: one JSON object per line, with UTC times"
        ),
    )
    log_file: Path | None = Field(
        None, description="file to which the log is written. Default: stderr"
    )

    max_inflight_mb: float = Field(
        512.0,
        gt=0,
        description="largest memory in MiB for the bodies and responses of all requests in flight",
    )
    max_image_mb: float = Field(
        64.0,
        gt=0,
        description=(
            "largest size in MiB of an encoded image, e.g. a JPEG file; larger images are rejected"
        ),
    )
    max_megapixels: float = Field(
        64.0,
        gt=0,
        description="largest width x height of an image in megapixels; larger images are rejected",
    )
    max_images: int = Field(
        64,
        ge=1,
        description="maximum number of images per request; requests with more images are rejected",
    )
    body_timeout_s: float = Field(
        20.0,
        gt=0,
        description=(
            "seconds within which a request body must arrive; later, the server still waits for a "
            "body that arrives with at least 8 KiB/s"
        ),
    )

    max_queue: int = Field(
        256,
        ge=1,
        description=(
            "maximum number of requests in flight per model; a request with several images counts "
            "once per image. Further requests are rejected with status 429"
        ),
    )
    decode_threads: int | None = Field(
        None,
        ge=1,
        description=(
            "number of threads per model that decode images for a GPU. Default: one per CPU core"
        ),
    )
    max_queue_delay_ms: float = Field(
        0.0,
        ge=0,
        le=10_000,
        description=(
            "milliseconds for which an incomplete batch waits for more images before it runs on a "
            "GPU; 0: it does not wait"
        ),
    )

    track_idle_s: float = Field(
        60.0,
        gt=0,
        description=(
            "seconds without a new frame after which the server forgets the tracked objects of a "
            "stream"
        ),
    )
    allow_url: bool = Field(
        False,
        description=(
            "accept requests with URLs of images or cameras, which the server then opens. By "
            "default, such requests are rejected"
        ),
    )
    url_allow_private: bool = Field(
        False,
        description=(
            "with --allow-url: also open URLs in private networks, e.g. of cameras in the LAN"
        ),
    )
    url_allow_host: Hosts = Field(
        (),
        description=(
            "with --allow-url: also open URLs of this host name, IP address or network, e.g. "
            "camera.lan, 127.0.0.1 or 192.168.1.0/24. May be repeated"
        ),
    )
    url_timeout_s: float = Field(
        5.0,
        gt=0,
        description=(
            "with --allow-url: timeout in seconds for the download of an image, including redirects"
        ),
    )

    capture: Path | None = Field(
        None,
        description=(
            "folder for images that match --capture-rule, and for their results. Without this "
            "option, the server stores no images"
        ),
    )
    capture_rule: Texts = Field(
        ("score 0.3..0.5",),
        description=(
            "with --capture: rule that selects the images to store: 'score 0.3..0.5' (an object "
            "has a score in this range), 'classes person,dog', 'empty' (no objects), 'rate 1%' "
            "(random images) or 'unlike' (different from stored images). Rules in the model's "
            "fovea.toml replace these rules. May be repeated"
        ),
    )
    capture_max_gb: float = Field(
        1.0,
        gt=0,
        description=(
            "largest total size of the captured images in GiB; the server deletes the oldest "
            "images first"
        ),
    )
    capture_days: float = Field(
        30.0, gt=0, description="number of days after which the server deletes a captured image"
    )

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


def _sentence(error: ErrorDetails, given: Mapping[str, Any]) -> str:
    """Return a message with the invalid setting and the reason, or with settings that conflict.

    `given` has the settings of the command line.
    """
    name = _written_name(str(error["loc"][0]), given) if error["loc"] else ""
    if error["type"] == "value_error":
        reason = str(error["ctx"]["error"])
        return f"{name}: {reason}" if name else reason
    # Remove pydantic's explanation of how it parsed the text.
    must = error["msg"].partition(", unable")[0].replace("Input should", "it must")
    return f"{name} is '{error['input']}'; {must}"


def _written_name(name: str, given: Mapping[str, Any]) -> str:
    """Return the name under which a user set a setting: a former variable, or the flag."""
    former = (f"FOVEA_{other.upper()}" for other in OTHER_NAMES.get(name, ()))
    if name in given or f"FOVEA_{name.upper()}" in os.environ:
        return flag(name)
    return next((each for each in former if each in os.environ), flag(name))


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
