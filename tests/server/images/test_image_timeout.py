"""How long the answer to images over v2 may take."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fovea_engines.repository.model_config import ModelConfig
from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching, ModelQueuePolicy
from fovea_server.dataplane.images import timeout_of
from fovea_server.models.model import ServedModel
from fovea_server.tensors.messages import InferRequest


@pytest.mark.parametrize(
    ("policy", "asked_us", "seconds"),
    [
        ({}, 0, None),
        ({}, 2_000_000, 2.0),
        ({"default_timeout_microseconds": 3_000_000}, 0, 3.0),
        ({"default_timeout_microseconds": 3_000_000}, 2_000_000, 3.0),
        (
            {"default_timeout_microseconds": 3_000_000, "allow_timeout_override": True},
            2_000_000,
            2.0,
        ),
        # Those who have waited for so long go last, and nobody is refused.
        ({"default_timeout_microseconds": 3_000_000, "timeout_action": "DELAY"}, 0, None),
    ],
)
def test_the_policy_of_the_model_goes_first(
    policy: dict[str, Any], asked_us: int, seconds: float | None
) -> None:
    batching = ModelDynamicBatching(default_queue_policy=ModelQueuePolicy(**policy))
    config = ModelConfig(dynamic_batching=batching)
    model = cast(ServedModel, SimpleNamespace(config=config))

    assert timeout_of(model, InferRequest("m", None, [], timeout_us=asked_us)) == seconds
