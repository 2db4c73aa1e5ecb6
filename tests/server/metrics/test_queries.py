"""Each query of the dashboard and the alerts asks for metrics and labels that a server exposes."""

import json
import re

import pytest
from ruamel.yaml import YAML
from tests.server.metrics.promql import (
    MONITORING,
    OF_TARGET,
    ROOT,
    dashboard,
    label_names,
    panel_queries,
    parse,
    result_labels,
    rules,
)

pytestmark = pytest.mark.real

COMPOSE = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
DASHBOARD = dashboard()
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize(("title", "query", "legend", "instant"), list(panel_queries()))
def test_a_panel_asks_for_what_there_is(known, title, query, legend, instant):
    assert label_names(legend) <= result_labels(parse(query), known)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is(known, rule):
    labels = result_labels(parse(rule["expr"]), known)
    assert label_names(rule["annotations"]["summary"]) - {"value"} <= labels


def test_a_name_that_is_wrong_is_found(known):
    for wrong in ("nv_inference_cuont", "fovea_ready{modle='x'}", "sum by (stage) (fovea_ready)"):
        with pytest.raises(AssertionError):
            result_labels(parse(wrong), known)


def test_variables_and_annotations_ask_for_what_there_is(known):
    for variable in DASHBOARD["templating"]["list"]:
        metric, label = re.fullmatch(
            r"label_values\((\w+), (\w+)\)", variable["definition"]
        ).groups()
        assert variable["query"]["query"] == variable["definition"]
        assert label in known[metric] | OF_TARGET
    for annotation in DASHBOARD["annotations"]["list"]:
        query = annotation["target"]["expr"].replace("$instance", ".*")
        assert label_names(annotation["titleFormat"]) <= result_labels(parse(query), known)


def test_every_metric_of_fovea_is_on_the_dashboard(known):
    text = json.dumps(DASHBOARD)
    own = {re.sub(r"_(bucket|count|sum)$", "", name) for name in known if name.startswith("fovea")}
    assert {name for name in own if name not in text} == set()


def test_panels_are_told_apart_and_explained():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["targets"]


def test_panels_fill_their_rows_and_do_not_overlap():
    seen = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in seen, panel["title"]
                seen.add((x, y))


def test_every_part_finds_the_next():
    provisioning = MONITORING / "grafana" / "provisioning"
    [source] = YAML(typ="safe").load(provisioning / "datasources/prometheus.yml")["datasources"]
    [provider] = YAML(typ="safe").load(provisioning / "dashboards/fovea.yml")["providers"]
    asked = {json.dumps(target["datasource"]) for panel in PANELS for target in panel["targets"]}
    asked |= {json.dumps(panel["datasource"]) for panel in PANELS}
    assert asked == {json.dumps({"type": source["type"], "uid": source["uid"]})}
    assert source["url"] == "http://prometheus:9090"
    mounts = dict(mount.split(":")[:2] for mount in COMPOSE["grafana"]["volumes"])
    assert mounts["./docker/monitoring/grafana/provisioning"] == "/etc/grafana/provisioning"
    assert mounts["./docker/monitoring/grafana/dashboards"] == provider["options"]["path"]
    home = COMPOSE["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/fovea.json"
    config = YAML(typ="safe").load(MONITORING / "prometheus" / "prometheus.yml")
    [job] = config["scrape_configs"]
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    [[target]] = [entry["targets"] for entry in job["static_configs"]]
    host, port = target.split(":")
    for name in ("cpu", "gpu"):
        assert COMPOSE[name]["networks"]["default"]["aliases"] == [host]
        published = [ports.rpartition(":")[0] for ports in COMPOSE[name]["ports"]]
        assert any(each.endswith(f":{port}") for each in published)
