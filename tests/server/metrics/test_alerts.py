"""Each alert, by promtool on series that it is about and others, and at the limits of a server."""

import re
import resource
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from ruamel.yaml import YAML
from tests.conftest import ROOT
from tests.server.metrics.conftest import EXPLICIT, control, scrape
from tests.server.metrics.prometheus import MONITORING, Prometheus, promtool, rules, wait_for
from tests.serving import RunningServer, start_server
from tests.stores import environment, remote_packages
from tests.web_store import web_store

pytestmark = pytest.mark.real

PROMETHEUS = MONITORING / "prometheus"
HERE = {"job": "fovea", "instance": "fovea:8002"}
DIGITS = HERE | {"model": "digits"}
BY_MODEL = {"instance": "fovea:8002", "model": "digits"}
VERSION = DIGITS | {"version": "1"}
STATUS = "fovea_request_duration_seconds_count"
BUCKET = "fovea_request_duration_seconds_bucket"
GPU = HERE | {"gpu_uuid": "GPU-1"}
RECEIVER = HERE | {"stream": "door", "receiver": "webhook"}


@dataclass(frozen=True)
class Case:
    """Series with which an alert fires and with which it does not, a value each minute.

    Attributes:
        labels: of the alert, beside its name and its severity.
        value: of the alert's `{{ $value }}`, as the summary has it.
    """

    fires: dict[str, str]
    quiet: dict[str, str]
    labels: dict[str, str]
    value: str = ""


def of(name: str, labels: dict[str, str], **more: str) -> str:
    """The name of a series."""
    pairs = (f'{key}="{value}"' for key, value in (labels | more).items())
    return f"{name}{{{', '.join(pairs)}}}"


def shares(used: str, limit: str, labels: dict[str, str], limit_labels=HERE) -> list[dict]:
    """96 % and 50 % of a limit."""
    top = of(limit, limit_labels)
    return [{of(used, labels): f"{value}x20", top: "100x20"} for value in (96, 50)]


def statuses(good: int, bad: int, status: str) -> dict[str, str]:
    """Requests a minute with status 200, and with another one."""
    return {
        of(STATUS, DIGITS, status="200"): f"0+{good}x20",
        of(STATUS, DIGITS, status=status): f"0+{bad}x20",
    }


def latencies(slow: int) -> dict[str, str]:
    """100 requests a minute, so many of which take 2 seconds and the others half a second."""
    counts = {"0.5": 100 - slow, "1.0": 100 - slow, "2.0": 100, "+Inf": 100}
    return {of(BUCKET, DIGITS, status="200", le=le): f"0+{n}x20" for le, n in counts.items()}


FLAT = "1x20"
CASES = {
    "FoveaDown": Case({of("up", HERE): "0x20"}, {of("up", HERE): FLAT}, HERE),
    "FoveaNotScraped": Case({"up{job='node'}": FLAT}, {of("up", HERE): "0x20"}, {"job": "fovea"}),
    "FoveaNotReady": Case({of("fovea_ready", HERE): "0x20"}, {of("fovea_ready", HERE): FLAT}, HERE),
    "FoveaModelUnavailable": Case(
        {of("fovea_model_ready", DIGITS): "0x20"}, {of("fovea_model_ready", DIGITS): FLAT}, DIGITS
    ),
    "FoveaRestarts": Case(
        {of("process_start_time_seconds", HERE): "0x8 10 20 30 30x9"},
        {of("process_start_time_seconds", HERE): "0x8 10 20 20x10"},
        HERE,
        "3",
    ),
    "FoveaSlow": Case(latencies(5), latencies(0), BY_MODEL, "1.8s"),
    "FoveaErrors": Case(statuses(90, 10, "500"), statuses(90, 10, "400"), BY_MODEL, "10%"),
    "FoveaRequestsRejected": Case(
        statuses(90, 60, "429"), statuses(90, 60, "rate_limited"), BY_MODEL, "1"
    ),
    "FoveaBadRequests": Case(statuses(80, 20, "413"), statuses(80, 20, "429"), BY_MODEL, "20%"),
    "FoveaQueueHigh": Case(
        *shares("fovea_inflight_requests", "fovea_queue_limit_requests", VERSION),
        VERSION,
        "96",
    ),
    "FoveaInflightMemoryHigh": Case(
        *shares("fovea_inflight_bytes", "fovea_inflight_limit_bytes", HERE), HERE, "96%"
    ),
    "FoveaMemory": Case(
        *shares("process_resident_memory_bytes", "fovea_memory_limit_bytes", HERE),
        {"instance": "fovea:8002"},
        "96%",
    ),
    "FoveaMachineMemory": Case(
        *shares("nv_cpu_memory_used_bytes", "nv_cpu_memory_total_bytes", HERE), HERE
    ),
    "FoveaGpuMemory": Case(
        *shares("nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", GPU, GPU), GPU
    ),
    "FoveaFileDescriptorsHigh": Case(
        *shares("process_open_fds", "process_max_fds", HERE), HERE, "96%"
    ),
    "FoveaRepositorySync": Case(
        {of("fovea_repository_sync_errors", HERE): "1x20"},
        {of("fovea_repository_sync_errors", HERE): "0x20"},
        HERE,
    ),
    "FoveaStream": Case(
        {of("fovea_streams", HERE, state="waiting"): FLAT},
        {of("fovea_streams", HERE, state="live"): FLAT, of("fovea_streams", HERE): FLAT},
        HERE | {"state": "waiting"},
        "1",
    ),
    "FoveaEventSink": Case(
        {of("fovea_stream_sink_up", RECEIVER): "0x20"},
        {of("fovea_stream_sink_up", RECEIVER): FLAT},
        RECEIVER,
    ),
    "FoveaDrift": Case(
        {of("fovea_drift", VERSION, quantity="sizes"): "0.5x20"},
        {of("fovea_drift", VERSION, quantity="sizes"): "0.2x20"},
        VERSION | {"quantity": "sizes"},
        "0.5",
    ),
}


def summary(rule: dict, case: Case) -> str:
    """The summary of an alert as people get it."""
    text = rule["annotations"]["summary"]
    for name, value in case.labels.items():
        text = text.replace(f"{{{{ $labels.{name} }}}}", value)
    for form in ("", " | humanize", " | humanizePercentage", " | humanizeDuration"):
        text = text.replace(f"{{{{ $value{form} }}}}", case.value)
    assert "{{" not in text
    return text


def test_prometheus_takes_the_configuration_the_rules_and_the_metrics(served, tmp_path: Path):
    text = (PROMETHEUS / "prometheus.yml").read_text()
    assert "/keys/prometheus.key" in text
    (tmp_path / "prometheus.key").write_text("fov_any")
    (tmp_path / "alerts.yml").write_bytes((PROMETHEUS / "alerts.yml").read_bytes())
    (tmp_path / "prometheus.yml").write_text(text.replace("/keys/", f"{tmp_path}/"))
    promtool("check", "config", tmp_path / "prometheus.yml")
    promtool("check", "rules", PROMETHEUS / "alerts.yml")
    # Triton's names break some of the rules.
    own = [line for line in scrape(served).splitlines(keepends=True) if "nv_" not in line]
    promtool("check", "metrics", text="".join(own))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_it_fires_when_it_should_and_only_then(rule, known, tmp_path: Path):
    name = rule["alert"]
    case = CASES[name]
    for series in case.fires | case.quiet:
        metric, pairs = re.fullmatch(r"(\w+)\{(.*)\}", series).groups()
        assert set(re.findall(r"(\w+)=", pairs)) <= known[metric] | {"job", "instance"}
    labels = case.labels | {"severity": rule["labels"]["severity"]}
    alert = {"exp_labels": labels, "exp_annotations": {"summary": summary(rule, case)}}
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": one, "values": v} for one, v in series.items()],
            "alert_rule_test": [{"eval_time": "15m", "alertname": name, "exp_alerts": alerts}],
        }
        for series, alerts in ((case.fires, [alert]), (case.quiet, []))
    ]
    file = tmp_path / "test.yml"
    with file.open("w") as stream:
        rule_files = [str(PROMETHEUS / "alerts.yml")]
        YAML(typ="safe").dump({"rule_files": rule_files, "tests": tests}, stream)
    promtool("test", "rules", file)


def test_prometheus_takes_the_configurations_of_the_page(tmp_path: Path):
    page, base = ROOT / "docs/how-to/monitoring.md", ROOT / "docker/kubernetes/base"
    without_keys, text = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)
    (tmp_path / "prometheus.yml").write_text(without_keys)
    promtool("check", "config", tmp_path / "prometheus.yml")
    # Debian's promtool is built without Kubernetes, and can check the rest.
    found = "kubernetes_sd_configs: [{role: pod}]"
    assert found in text
    static = text.replace(found, "static_configs: [{targets: [pod]}]")
    (tmp_path / "fovea.key").write_text("fov_any")
    static = static.replace("/etc/prometheus/", f"{tmp_path}/")
    (tmp_path / "prometheus.yml").write_text(static)
    promtool("check", "config", tmp_path / "prometheus.yml")
    [relabelling] = YAML(typ="safe").load(text)["scrape_configs"][0]["relabel_configs"]
    [own] = YAML(typ="safe").load(base / "kustomization.yaml")["labels"]
    labels = {re.sub(r"[^a-z]", "_", name): value for name, value in own["pairs"].items()}
    deployment = YAML(typ="safe").load(base / "deployment.yaml")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    [port] = [each["name"] for each in container["ports"] if each["containerPort"] == 8002]
    label, _ = relabelling["source_labels"]
    app = labels[label.removeprefix("__meta_kubernetes_pod_label_")]
    assert relabelling["regex"] == f"{app};{port}"


def test_alerts_fire_when_a_model_is_unloaded_and_when_the_server_is_killed(
    demo_repository, prometheus, tmp_path
):
    server = start_server(demo_repository, tmp_path, EXPLICIT)
    try:
        asked = prometheus(server.metrics_port)
        wait_for(lambda: asked.query('up{job="fovea"} == 1'))
        wait_for(lambda: asked.query('fovea_model_ready{model="digits"} == 1'))
        assert asked.firing("FoveaModelUnavailable") == asked.firing("FoveaDown") == []
        control(server, "unload")
        wait_for(lambda: asked.firing("FoveaModelUnavailable"))
        [alert] = asked.firing("FoveaModelUnavailable")
        assert alert["model"] == "digits"
        assert asked.query('ALERTS{alertname=~"Fovea.*"}')
        assert asked.firing("FoveaNotReady") == []
        control(server, "load")
        wait_for(lambda: not asked.firing("FoveaModelUnavailable"))
    finally:
        server.process.kill()
        server.process.wait()
    wait_for(lambda: asked.firing("FoveaDown"))
    [alert] = asked.firing("FoveaDown")
    assert alert["instance"] == f"127.0.0.1:{server.metrics_port}"


@contextmanager
def repeating(*asks: Callable[[], object]) -> Iterator[None]:
    """Ask without pause in threads, until the block ends."""
    ended = threading.Event()

    def insist(ask: Callable[[], object]) -> None:
        while not ended.is_set():
            ask()

    threads = [threading.Thread(target=insist, args=(ask,)) for ask in asks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def server(demo_repository, tmp_path_factory) -> Iterator[RunningServer]:
    """A server whose limits are reached soon."""
    flags = ("--max-queue=4", "--max-inflight-mb=1", "--max-image-mb=0.25", "--log-access=false")
    server = start_server(demo_repository, tmp_path_factory.mktemp("log"), flags)
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture(scope="module")
def asked(server, prometheus) -> Prometheus:
    asked: Prometheus = prometheus(server.metrics_port)
    wait_for(lambda: asked.query("fovea_ready == 1"))
    return asked


def firing(asked: Prometheus, *alerts: str) -> None:
    """Wait until they fire for the model."""
    waiting = set(alerts)

    def all_fire() -> bool:
        for alert in list(waiting):
            if any(one.get("model") == "digits" for one in asked.firing(alert)):
                waiting.remove(alert)
        return not waiting

    wait_for(all_fire)


def test_more_requests_than_the_queue_holds(server, asked, scene):
    def four() -> None:
        httpx.post(server.predict_url("digits"), files=[("f", scene)] * 4, timeout=60)

    with repeating(*[four] * 3):
        firing(asked, "FoveaQueueHigh", "FoveaRequestsRejected")


def test_images_that_are_too_large_and_answers_that_are_too_late(server, asked, scene):
    large, late = bytes(1 << 19), {"x-request-timeout-ms": "1"}

    def send(content: bytes, headers: dict[str, str]) -> None:
        httpx.post(server.predict_url("digits"), content=content, headers=headers, timeout=60)

    with repeating(lambda: send(large, {}), lambda: send(scene, late)):
        firing(asked, "FoveaBadRequests", "FoveaErrors")


def test_bodies_that_arrive_slowly(server, asked):
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Length: 1000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + bytes(900_000))
        wait_for(lambda: asked.firing("FoveaInflightMemoryHigh"))


def test_a_store_that_cannot_be_read(demo_versions, prometheus, tmp_path):
    remote_packages()
    shutil.copytree(demo_versions / "digits", tmp_path / "store" / "digits")
    poll = ("--model-control-mode=poll", "--repository-poll-secs=0.2", "--allow-grpc=false")
    cache = f"--repository-cache={tmp_path / 'cache'}"
    with web_store(tmp_path / "store") as store:
        server = start_server(store.url, tmp_path, (*poll, cache), environment=environment())
        try:
            asked = prometheus(server.metrics_port)
            wait_for(lambda: asked.query("fovea_repository_sync_errors == 0"))
            (tmp_path / "store" / "digits").rename(tmp_path / "away")
            wait_for(lambda: asked.firing("FoveaRepositorySync"))
            assert asked.firing("FoveaModelUnavailable") == []
            (tmp_path / "away").rename(tmp_path / "store" / "digits")
            wait_for(lambda: not asked.firing("FoveaRepositorySync"))
        finally:
            server.process.kill()
            server.process.wait()


# The last one: the server is not to be used after it.
def test_more_connections_than_files(server, asked):
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (128, 128))
    with ExitStack() as stack:
        for _ in range(80):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        wait_for(lambda: asked.firing("FoveaFileDescriptorsHigh"))


# The rule of prometheus-adapter for the autoscaler of Kubernetes.
[RULE] = YAML(typ="safe").load(ROOT / "docker/kubernetes/autoscaling/adapter.yaml")["rules"][
    "custom"
]
# prometheus-adapter fills these in for each request of an autoscaler.
QUERY = (
    RULE["metricsQuery"]
    .replace("<<.LabelMatchers>>", 'namespace="default",pod=~"fovea-1|fovea-2"')
    .replace("<<.GroupBy>>", "pod")
)
STAGE = "fovea_stage_duration_seconds"


def test_the_autoscaler_gets_the_mean_wait_of_each_pod_and_0_without_requests(tmp_path):
    def series(pod: str, sums: str, counts: str) -> list[dict[str, str]]:
        labels = f'{{stage="queue",namespace="default",pod="{pod}"}}'
        return [
            {"series": f"{STAGE}_sum{labels}", "values": sums},
            {"series": f"{STAGE}_count{labels}", "values": counts},
        ]

    rules, test = tmp_path / "rules.yml", tmp_path / "test.yml"
    yaml = YAML(typ="safe")
    yaml.dump({"groups": []}, rules)
    # 60 requests in 15 s that waited 12 s together, and none at all.
    given = series("fovea-1", "0+12x40", "0+60x40") + series("fovea-2", "5x40", "9x40")
    wanted = [
        {"labels": '{pod="fovea-1"}', "value": 0.2},
        {"labels": '{pod="fovea-2"}', "value": 0},
    ]
    asked = {"expr": QUERY, "eval_time": "8m", "exp_samples": wanted}
    case = {"interval": "15s", "input_series": given, "promql_expr_test": [asked]}
    yaml.dump({"rule_files": [str(rules)], "tests": [case]}, test)
    promtool("test", "rules", test)
