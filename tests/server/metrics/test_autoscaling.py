"""The rule of prometheus-adapter for the autoscaler: what it asks for, and what it gives."""

import pytest
from ruamel.yaml import YAML
from tests.server.metrics.promql import ROOT, parse, result_labels
from tests.server.metrics.test_alerts import promtool

pytestmark = pytest.mark.real

[RULE] = YAML(typ="safe").load(ROOT / "docker/kubernetes/autoscaling/adapter.yaml")["rules"][
    "custom"
]
# prometheus-adapter fills these in for each request of an autoscaler.
QUERY = (
    RULE["metricsQuery"]
    .replace("<<.LabelMatchers>>", 'namespace="default",pod=~"fovea-1|fovea-2"')
    .replace("<<.GroupBy>>", "pod")
)
OF_POD = {"namespace", "pod"}
STAGE = "fovea_stage_duration_seconds"


def test_it_asks_for_what_there_is(known):
    labelled = {name: labels | OF_POD for name, labels in known.items()}
    assert result_labels(parse(QUERY), labelled) == {"pod"}
    assert result_labels(parse(RULE["seriesQuery"]), labelled) >= OF_POD
    assert set(RULE["resources"]["overrides"]) == OF_POD


def test_it_is_the_mean_wait_of_each_pod_and_0_without_requests(tmp_path):
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
