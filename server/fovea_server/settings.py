"""What the operator decides. The only reader of the environment in the project."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Server settings; each can be given as FOVEA_<NAME> in the environment or as a flag."""

    model_config = SettingsConfigDict(env_prefix="FOVEA_", extra="forbid", frozen=True)

    model_repository: Path = Field(Path("repository"), description="folder of models to serve")
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for every one")
    http_port: int = Field(8000, ge=0, le=65535, description="port of the HTTP server")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$")

    max_body_mb: float = Field(64.0, gt=0, description="largest request body, MB")
    max_held_mb: float = Field(512.0, gt=0, description="bodies of all requests at once, MB")
    max_image_mb: float = Field(32.0, gt=0, description="largest encoded image, MB")
    max_megapixels: float = Field(64.0, gt=0, description="largest image after decoding")
    max_images: int = Field(64, ge=1, description="most images in one request")
    body_timeout_s: float = Field(20.0, gt=0, description="time a body may take to arrive")

    max_queue: int = Field(256, ge=1, description="most images waiting in one model's queue")
    max_queue_delay_ms: float = Field(
        0.0,
        ge=0,
        le=10_000,
        description="how long a batch that is not full waits for more (models with max_batch > 1)",
    )
    rebuild: bool = Field(
        False, description="build TensorRT engines again that do not fit the GPU or TensorRT here"
    )
    threads: int | None = Field(None, ge=1, description="cores to use; default all it may use")
    exit_timeout_s: float = Field(30.0, ge=0, description="time to finish what was accepted")

    allow_url: bool = Field(False, description="fetch images that requests name by URL")
    url_allow_private: bool = Field(
        False, description="also from private and loopback addresses (cameras on the LAN)"
    )
    url_timeout_s: float = Field(5.0, gt=0, description="time for one fetch, redirects included")
