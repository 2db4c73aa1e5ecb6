"""Each alert, by promtool: it fires on the series that it is about, and on no others."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from tests.server.metrics.promql import MONITORING, ROOT, rules
from tests.system import program

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
    "FoveaRefusing": Case(statuses(90, 60, "429"), statuses(90, 60, "404"), BY_MODEL, "1"),
    "FoveaBadRequests": Case(statuses(80, 20, "413"), statuses(80, 20, "429"), BY_MODEL, "20%"),
    "FoveaQueueFilling": Case(
        *shares("fovea_accepted_requests", "fovea_queue_limit_requests", VERSION),
        VERSION,
        "96",
    ),
    "FoveaBodiesFilling": Case(
        *shares("fovea_held_bytes", "fovea_held_limit_bytes", HERE), HERE, "96%"
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
    "FoveaFiles": Case(*shares("process_open_fds", "process_max_fds", HERE), HERE, "96%"),
    "FoveaStore": Case(
        {of("fovea_store_faults", HERE): "1x20"}, {of("fovea_store_faults", HERE): "0x20"}, HERE
    ),
    "FoveaStream": Case(
        {of("fovea_streams", HERE, state="waiting"): FLAT},
        {of("fovea_streams", HERE, state="live"): FLAT, of("fovea_streams", HERE): FLAT},
        HERE | {"state": "waiting"},
        "1",
    ),
    "FoveaReceiver": Case(
        {of("fovea_stream_receiver_up", RECEIVER): "0x20"},
        {of("fovea_stream_receiver_up", RECEIVER): FLAT},
        RECEIVER,
    ),
    "FoveaDrift": Case(
        {of("fovea_drift", VERSION, quantity="sizes"): "0.5x20"},
        {of("fovea_drift", VERSION, quantity="sizes"): "0.2x20"},
        VERSION | {"quantity": "sizes"},
        "0.5",
    ),
}


def promtool(*arguments: object) -> None:
    tool = program("promtool", package="prometheus")
    done = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def summary(rule: dict, case: Case) -> str:
    """The summary of an alert as people get it."""
    text = rule["annotations"]["summary"]
    for name, value in case.labels.items():
        text = text.replace(f"{{{{ $labels.{name} }}}}", value)
    for form in ("", " | humanize", " | humanizePercentage", " | humanizeDuration"):
        text = text.replace(f"{{{{ $value{form} }}}}", case.value)
    assert "{{" not in text
    return text


def test_prometheus_takes_the_configuration_and_the_rules(tmp_path: Path):
    text = (PROMETHEUS / "prometheus.yml").read_text()
    assert "/keys/prometheus.key" in text
    (tmp_path / "prometheus.key").write_text("fov_any")
    (tmp_path / "alerts.yml").write_bytes((PROMETHEUS / "alerts.yml").read_bytes())
    (tmp_path / "prometheus.yml").write_text(text.replace("/keys/", f"{tmp_path}/"))
    promtool("check", "config", tmp_path / "prometheus.yml")
    promtool("check", "rules", PROMETHEUS / "alerts.yml")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_it_fires_when_it_should_and_only_then(rule, tmp_path: Path):
    name = rule["alert"]
    case = CASES[name]
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


def test_prometheus_takes_the_configuration_for_kubernetes(tmp_path: Path):
    page, base = ROOT / "docs/operations.md", ROOT / "docker/kubernetes/base"
    [text] = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)
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


def test_each_alert_is_explained_in_the_docs():
    page = (ROOT / "docs" / "operations.md").read_text()
    for rule in rules():
        assert f"| `{rule['alert']}` |" in page, rule["alert"]
    assert f"| {len(rules())} alerts, none of them firing |" in page
