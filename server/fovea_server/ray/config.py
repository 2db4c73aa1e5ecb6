"""The configuration of a cluster, from fovea-ray.yaml or from `args:` in Serve's own file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fovea_preprocess.errors import InvalidOption
from fovea_server.settings import OTHER_NAMES, ModelControlMode, Settings

MODELS = "fovea"
"""Name of the Ray application with the models. Each deployment has the name of its model."""

ROSTER = "@roster"
"""Name of the deployment from which the Ray fronts get the list of models. A model cannot have this
name.
"""

FRONTS = "fovea-fronts"
"""Name of the Ray application with the fronts: servers on each node, which forward requests to
replicas.

The fronts continue to run when models are deployed again.
"""

FRONT = "@front"
"""Name of the deployment of the Ray fronts."""

EVERY = "*"
"""Key of the options for all models that have no options of their own."""

NODE = "node"
"""Value of an address setting that means the node's address in the cluster."""

_OF_REPLICAS = "each replica serves one model, and fovea-ray.yaml lists the models"
# Maps prefixes of settings to the reason why these settings have no effect, or another effect, in a
# cluster.
_REFUSED = {
    "model_repository": "set `repository` to the location of the models instead",
    "model_name": (
        "`repository` must contain one directory per model: set it to the parent directory"
    ),
    "drain_secs": "Ray sends no new requests to a replica that it stops",
    "model_control_mode": "replicas always load changes from the repository, as in poll mode",
    "load_model": _OF_REPLICAS,
    "exit_on_error": "a replica never starts if its model cannot be loaded",
    "threads": "set `cpus` of the model instead",
    "allow_http": "the front server of each node always serves HTTP",
    "api": "a cluster cannot route the requests of these APIs to a replica",
    "label_studio": "a cluster cannot route the requests of these APIs to a replica",
    "allow_metrics": "Ray exports the metrics of replicas",
    "metrics": "Ray exports the metrics of replicas",
    "allow_client_shm": "a client and its replica may be on different machines",
    "trace_config": "each replica would write its own file: use otel instead",
    "log_file": "Ray keeps a log for each replica",
}
_FULL_NAMES = {other: name for name, others in OTHER_NAMES.items() for other in others}


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelOptions(_Strict):
    """The options for the replicas of one model."""

    cpus: int | None = Field(
        None,
        ge=1,
        description="CPU cores of a replica; default: the number in config.pbtxt, otherwise 1",
    )
    gpus: float | None = Field(
        None, ge=0, description="GPUs of a replica; default: 1 for a TensorRT engine, otherwise 0"
    )
    min_replicas: int = Field(
        1,
        ge=0,
        description="smallest number of replicas; 0 stops an idle model until the next request",
    )
    max_replicas: int = Field(1, ge=1, description="largest number of replicas")
    target_ongoing_requests: float | None = Field(
        None,
        gt=0,
        description=(
            "number of running and queued requests of a replica above which another replica"
            " starts; default: twice the number of requests that its engine computes at "
            "once"
        ),
    )
    upscale_delay_s: float = Field(
        10.0, ge=0, description="seconds above `target_ongoing_requests` until a replica starts"
    )
    downscale_delay_s: float = Field(
        300.0, ge=0, description="seconds below `target_ongoing_requests` until a replica stops"
    )

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas ({self.min_replicas}) exceeds max_replicas ({self.max_replicas}): "
                "raise max_replicas, or lower min_replicas"
            )
        return self


class ClusterConfig(_Strict):
    """The configuration of a cluster: a repository, settings of `fovea serve`, model options."""

    repository: Annotated[tuple[str, ...], BeforeValidator(_several), Field(min_length=1)]
    settings: Mapping[str, Any] = {}
    models: Mapping[str, ModelOptions] = {}

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Parse the content of the configuration.

        Raises:
            InvalidOption: keys are invalid. The message contains each key and the remedy.
        """
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            settings = given.get("settings")
            refused = _refusals(settings) if isinstance(settings, Mapping) else []
            raise InvalidOption("\n".join([_sentences(error, cls), *refused])) from None

    def options(self, model: str) -> ModelOptions:
        """Return the options of a model.

        If it has no options of its own, return the options for "*", or else the defaults.
        """
        return self.models.get(model) or self.models.get(EVERY) or ModelOptions()

    def check_models(self, known: Mapping[str, object]) -> None:
        """Raise InvalidOption if there are options for a model that is not in the repository."""
        for name in self.models:
            if name != EVERY and name not in known:
                meant = _meant(name, known)
                raise InvalidOption(
                    f"models.{name}: the repository has no model of this name; {meant}models: "
                    f"{', '.join(sorted(known)) or 'none'}"
                )

    def server_settings(self) -> dict[str, Any]:
        """Return all settings of the server as JSON values.

        All settings are set, so that the environment of a node has no effect.

        Raises:
            InvalidOption: a setting is invalid or has no effect in a cluster.
        """
        if refused := _refusals(self.settings):
            raise InvalidOption("\n".join(refused))
        chosen: dict[str, Any] = {"log_access": False}
        chosen |= {_FULL_NAMES.get(name, name): value for name, value in self.settings.items()}
        places = [each if "://" in each else str(Path(each).absolute()) for each in self.repository]
        fixed: dict[str, Any] = {
            "model_repository": places,
            "model_control_mode": ModelControlMode.POLL,
            "allow_metrics": False,
        }
        try:
            made = Settings(**chosen, **fixed)
        except ValidationError as error:
            raise InvalidOption(_sentences(error, Settings, "settings.")) from None
        # Leave out the repository, because model_dump writes a remote URL as a mapping, which the
        # settings do not accept.
        dumped = made.model_dump(mode="json", exclude={"model_repository"})
        named = [str(place) for place in made.model_repository]
        return {**dumped, "model_repository": named}


def _meant(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}? " if close else ""


def _refusals(settings: Iterable[str]) -> list[str]:
    """Return the reasons why settings cannot be used in a cluster."""
    return [reason for name in settings if (reason := _refusal(name))]


def _refusal(name: str) -> str:
    name = _FULL_NAMES.get(name, name)
    if name not in Settings.model_fields:
        meant = _meant(name, Settings.model_fields)
        return (
            f"settings.{name}: unknown setting; {meant}see `fovea serve --help-all` for all "
            "settings, and write _ instead of -"
        )
    for refused, reason in _REFUSED.items():
        if name == refused or name.startswith(f"{refused}_"):
            return f"settings.{name} has no effect on a cluster: {reason}"
    return ""


def _sentences(error: ValidationError, kind: type[BaseModel], above: str = "") -> str:
    """Return a text with all errors and their remedies."""
    found = error.errors(include_url=False)
    return "\n".join(_sentence(each, kind, above) for each in found)


def _sentence(error: ErrorDetails, kind: type[BaseModel], above: str) -> str:
    place = above + ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = (ModelOptions if error["loc"][0] == "models" else kind).model_fields
        meant = _meant(str(error["loc"][-1]), known)
        return f"{place}: unknown key; {meant}keys: {', '.join(known)}"
    if error["type"] == "missing":
        return f"{place} is missing: add it"
    if error["type"] == "value_error":
        reason = str(error["ctx"]["error"])
        return f"{place}: {reason}" if place else reason
    must = error["msg"].partition(", unable")[0].replace("Input should", "it must")
    return f"{place} is {error['input']!r}; {must}"
