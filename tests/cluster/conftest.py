"""A cluster of Ray on this machine: three nodes, each with processes of its own; and load on it."""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from tests.built import build
from tests.forked import forked_fovea
from tests.serving import free_ports
from tests.stores import REMOTE, Bucket

from fovea_engines.build.plan import BuildPlan

_MEMORY = 100 << 20


def pytest_collection_modifyitems(items):
    for item in items:
        # Of Ray's own code, in this process.
        item.add_marker(pytest.mark.filterwarnings("ignore"))
        # CI has the tests with real models beside these, and a deployment starts processes.
        item.add_marker(pytest.mark.timeout(1200))


@dataclass
class RunningCluster:
    """The head has no CPU for replicas: they are on the two others."""

    cluster: Any
    host: str
    port: int
    grpc_port: int
    folder: Path
    workers: list[Any] = field(default_factory=list)
    _added: int = 0
    _deployed: dict[str, object] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def deploy(self, **config: Any) -> subprocess.CompletedProcess[str]:
        """`fovea ray deploy`, as it is typed."""
        file = self.folder / "fovea-ray.yaml"
        settings = {"http_port": self.port, "grpc_port": self.grpc_port, "http_address": "node"}
        # They ask over the network, and a front tells less there than on its own machine.
        settings["no_keys"] = True
        settings |= {"repository_poll_secs": 0.5, **config.get("settings", {})}
        file.write_text(yaml.safe_dump({**config, "settings": settings}))
        command = ["ray", "deploy", "--config", str(file), "--address", self.cluster.address]
        done = subprocess.run(
            [*forked_fovea(), *command],
            capture_output=True,
            text=True,
            timeout=600,
        )
        # What is refused as wrong changes nothing.
        if done.returncode != 2:
            self._deployed = None if done.returncode else config
        return done

    def serve(self, **config: Any) -> None:
        """Deploy, but for what is deployed already: to start all its processes takes long."""
        if config != self._deployed:
            done = self.deploy(**config)
            assert done.returncode == 0, done.stdout + done.stderr

    def add_worker(self) -> None:
        """Add a node with an address of its own, so that every front has the same port."""
        self._added += 1
        node = {"node_ip_address": f"127.0.0.{self._added + 1}", "num_cpus": 4}
        self.workers.append(self.cluster.add_node(object_store_memory=_MEMORY, **node))

    def replicas(self, deployment: str, application: str = "fovea") -> list[Any]:
        """The actors of a deployment that run."""
        import ray

        prefix = f"SERVE_REPLICA::{application}#{deployment}#"
        named = ray.util.list_named_actors(all_namespaces=True)
        names = [each["name"] for each in named if each["name"].startswith(prefix)]
        return [ray.get_actor(name, namespace="serve") for name in names]

    def states(self, deployment: str, application: str = "fovea") -> dict[str, int]:
        """The number of replicas in each state."""
        from ray import serve

        return serve.status().applications[application].deployments[deployment].replica_states

    def running(self, deployment: str) -> int:
        """The number of replicas that answer."""
        return self.states(deployment).get("RUNNING", 0)


@pytest.fixture(scope="session")
def store() -> Iterator[Bucket]:
    """A store that every node can read: they take the environment of this process."""
    bucket = Bucket()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**bucket.variables, "PYTHONPATH": str(REMOTE)}.items():
            patch.setenv(name, value)
        yield bucket
    bucket.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, store) -> Iterator[RunningCluster]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Ray's workers are nice to what a node does besides: here that is other tests, which are not.
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_worker_niceness", "0")
    started: set[psutil.Process] = set()
    cluster = Cluster()
    try:
        head = cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=_MEMORY)
        ports = free_ports(2)
        folder = tmp_path_factory.mktemp("cluster")
        running = RunningCluster(cluster, head.node_ip_address, *ports, folder)
        for _ in range(2):
            running.add_worker()
        ray.init(cluster.address, namespace="serve", log_to_driver=False)
        yield running
    finally:
        patch.undo()
        started.update(psutil.Process().children(recursive=True))
        ray.shutdown()
        cluster.shutdown()
        # Workers outlive a node that was killed by a moment, and would be nobody's.
        _, left = psutil.wait_procs(started, timeout=10)
        for process in left:
            process.kill()


@pytest.fixture(scope="session")
def two_models(demo_repository, demo_model, tmp_path_factory) -> Path:
    """A repository with the models `digits` and `spare`, not to be written to."""
    folder = tmp_path_factory.mktemp("two") / "models"
    shutil.copytree(demo_repository, folder)
    build(BuildPlan(demo_model, "spare", folder, "openvino"))
    return folder


@pytest.fixture
def repository(two_models, tmp_path) -> Path:
    """A repository like that, which a test may write to."""
    return Path(shutil.copytree(two_models, tmp_path / "models"))


@pytest.fixture(scope="session")
def scene() -> bytes:
    return (Path(__file__).parents[2] / "server/fovea_server/demo/scene-1.jpg").read_bytes()


@dataclass
class Load:
    """The answers and errors of clients that each send one request after the other.

    Attributes:
        pause_s: between an answer and the next request of a client. With none, each replica has
            requests whenever it dies; what then starts anew needs the cores.
    """

    pause_s: float = 0.0
    answers: list[httpx.Response] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)

    @property
    def failed(self) -> list[Any]:
        """Requests that were not answered as they should be."""
        return [*self.faults, *(a.text for a in self.answers if a.status_code != 200)]

    def wait_for(self, count: int) -> None:
        """Wait until that many more were answered."""
        most = len(self.answers) + count
        until(lambda: len(self.answers) >= most or self.faults)


@pytest.fixture
def load(cluster, scene):
    """Load on a model while a block runs, of some clients."""

    @contextmanager
    def loading(model: str, clients: int = 4) -> Iterator[Load]:
        found, stop = Load(), threading.Event()
        url = f"{cluster.url}/v1/models/{model}/predict"

        def send() -> None:
            with httpx.Client(timeout=600) as client:
                while not stop.wait(found.pause_s):
                    try:
                        found.answers.append(client.post(url, content=scene))
                    except httpx.HTTPError as error:
                        found.faults.append(error)
                        return

        with ThreadPoolExecutor(clients) as pool:
            for _ in range(clients):
                pool.submit(send)
            try:
                found.wait_for(20)
                yield found
                found.wait_for(20)
            finally:
                stop.set()

    return loading


def until(holds: Callable[[], object], limit_s: float = 600) -> None:
    """Wait for something to hold."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        # To be asked takes much of the controller, which has replicas to start.
        time.sleep(0.3)
