"""The servers of a replica and of a front, without Ray."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.serving import free_ports

from fovea_server.listen import bind
from fovea_server.ray.forwarder import Forwarder
from fovea_server.ray.front import make_front
from fovea_server.ray.replica import BackendServers, replica_settings
from fovea_server.ray.running import LoadedModels, ServerThread
from fovea_server.settings import Settings


class Handle:
    """A double for Serve's handle of a deployment, because a real one needs a cluster.

    `woken` counts how often a replica was asked for; `told` answers for all replicas.
    """

    def __init__(self, told: Callable[..., Any] = lambda *_: None) -> None:
        self.woken = 0
        self.awake = self
        self._told = told

    def remote(self) -> asyncio.Future[None]:
        self.woken += 1
        return asyncio.get_running_loop().create_future()

    def broadcast(self, method: str, *given: Any) -> "Handle":
        self._given = given
        return self

    async def results_async(self) -> list[Any]:
        return [self._told(*self._given)]


def forwarder(handle: Handle, *, keeps_state: bool = False, most_waiting: int = 8) -> Forwarder:
    """A forwarder to a model `digits`, whose replicas a test names."""
    given = {"keeps_state": keeps_state, "most_waiting": most_waiting, "leaving_s": 0.0}
    return Forwarder("digits", handle, **given)


@dataclass
class Front:
    """A front and a replica of the model `digits`."""

    serving: LoadedModels
    replica: LoadedModels
    behind: BackendServers
    running: ServerThread
    forwarder: Forwarder

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.serving.service.settings.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.serving.service.settings.grpc_port}"

    def there(self, replicas: dict[str, Any]) -> None:
        """Tell the front which replicas run."""

        async def tell() -> None:
            self.forwarder.update(replicas)

        asyncio.run_coroutine_threadsafe(tell(), self.running.loop).result()

    def counted(self, of: LoadedModels) -> dict[str, float]:
        """The measured requests of a process, by their status."""
        samples = of.service.traffic.durations.family().samples
        return {labels["status"]: n for suffix, labels, n in samples if suffix == "_count" and n}

    def stop(self) -> None:
        self.running.stop()
        self.behind.running.stop()


def start_front(repository: Any, **given: Any) -> Front:
    """Start both; the front knows the replica."""
    http_port, grpc_port = free_ports(2)
    ports = {"http_port": http_port, "grpc_port": grpc_port, "allow_metrics": False}
    settings = Settings(model_repository=(repository,), **ports, **given)
    replica = LoadedModels(replica_settings(settings.model_dump(), "127.0.0.1"), ("digits",))
    running = BackendServers(replica.app)
    serving = LoadedModels(settings, ("digits",), described=True)

    def told(version: int | None, v2: bool) -> Any:
        models = replica.service.models
        if v2:
            return models.v2_statistics("digits", version)
        return models.statistics("digits", {}).model_dump(mode="json")

    way = forwarder(Handle(told))
    server = make_front(serving.app, {"digits": way})
    front = ServerThread(server, serving.service, bind("127.0.0.1", http_port), way.close)
    started = Front(serving, replica, running, front, way)
    started.there({"1": running.about})
    return started
