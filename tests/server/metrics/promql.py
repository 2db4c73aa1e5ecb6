"""The queries of the dashboard and of the alerts, and the labels that they use."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "docker" / "monitoring"
PROMQL = Path(sys.prefix) / "promql"
if PROMQL.is_dir():
    sys.path.append(str(PROMQL))

# Prometheus adds these to whatever it scrapes.
OF_TARGET = {"job", "instance"}
# Prometheus' own metrics.
OWN = {"up": set(), "ALERTS": {"alertname", "alertstate", "severity"}}
_VARIABLES = {
    "$__rate_interval": "1m",
    "$__range": "1m",
    "$instance": ".*",
    "$model": ".*",
}

Labels = Mapping[str, set[str]]
"""Metric -> names of its labels."""


def rules() -> list[dict[str, Any]]:
    """The alerts."""
    document = YAML(typ="safe").load(MONITORING / "prometheus" / "alerts.yml")
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana has it."""
    text = (MONITORING / "grafana" / "dashboards" / "fovea.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def panel_queries() -> Iterator[tuple[str, str, str, bool]]:
    """Title of the panel, query with values for variables, legend, and if it is asked for now."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            query, instant = filled(target["expr"]), target.get("instant", False)
            yield panel["title"], query, target["legendFormat"], instant


def filled(query: str) -> str:
    """A query with values for Grafana's variables."""
    for name, value in _VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


def label_names(template: str) -> set[str]:
    """The labels that a legend or a summary names."""
    return set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", template))


def parse(query: str):
    """The query as a tree; the test skips where there is no parser."""
    if not PROMQL.is_dir():
        pytest.skip("there is no parser of PromQL: make .venv/promql")
    import promql_parser

    return promql_parser.parse(query)


def result_labels(node, known: Labels) -> set[str]:
    """The labels of a query's result; an assertion for a metric or label that there is not."""
    kind = type(node).__name__
    if kind == "VectorSelector":
        return _selected(node, known)
    if kind == "MatrixSelector":
        return _selected(node.vector_selector, known)
    if kind == "ParenExpr":
        return result_labels(node.expr, known)
    if kind == "AggregateExpr":
        inside, by = result_labels(node.expr, known), node.modifier
        labels = set(by.labels) if by else set()
        assert by is None or str(by.type).endswith("By"), "only `by` says what is left"
        assert labels <= inside, labels - inside
        return labels
    if kind == "Call":
        found = [result_labels(argument, known) for argument in node.args]
        if node.func.name == "absent":
            return {one.name for one in node.args[0].matchers.matchers}
        bound = {"le"} if node.func.name == "histogram_quantile" else set()
        assert all(bound <= labels for labels in found[1:])
        return set().union(*found) - bound
    if kind == "BinaryExpr":
        left, right = (result_labels(side, known) for side in (node.lhs, node.rhs))
        if node.modifier is None or node.modifier.matching is None:
            return left | right
        matched = set(node.modifier.matching.labels)
        assert matched <= left & right, matched
        return left if "ManyToOne" in str(node.modifier.card) else matched
    assert kind in ("NumberLiteral", "StringLiteral"), kind
    return set()


def _selected(selector, known: Labels) -> set[str]:
    assert selector.name in known, f"/metrics has no {selector.name}"
    labels = known[selector.name] | OF_TARGET
    for matcher in selector.matchers.matchers:
        assert matcher.name in labels, f"{selector.name} has no label {matcher.name}"
    return labels
