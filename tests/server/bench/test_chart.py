"""Charts are SVG, with what was asked for in them."""

from xml.etree import ElementTree

import pytest

from fovea_server.bench.chart import Axis, Series, chart, round_ticks
from fovea_server.bench.level import Level
from fovea_server.bench.load import ClosedLoop, OpenLoop
from fovea_server.cli.bench_tables import draw

SVG = "{http://www.w3.org/2000/svg}"


def test_points_lines_and_names_are_drawn():
    axis = Axis("x < y", [0, 5, 10])
    series = [Series("<one>", [(0, 0), (10, 10)]), Series("two", [(5, 5)], joined=False)]
    drawing = ElementTree.fromstring(chart("a & b", axis, axis, series, limit=2.5))
    [line] = drawing.findall(f"{SVG}polyline")
    (left, low), (right, high) = (map(float, p.split(",")) for p in line.attrib["points"].split())
    [point] = drawing.findall(f"{SVG}circle")
    assert float(point.attrib["cx"]) == pytest.approx((left + right) / 2)
    assert float(point.attrib["cy"]) == pytest.approx((low + high) / 2)
    assert left < right
    assert high < low
    texts = [text.text for text in drawing.findall(f"{SVG}text")]
    assert {"a & b", "<one>", "two", "x < y", "0", "5", "10"} <= set(texts)


@pytest.mark.parametrize("most", [0, 0.7, 1, 3, 1234])
def test_ticks_enclose_the_values(most):
    ticks = round_ticks(most)
    assert ticks[0] == 0
    assert most <= ticks[-1]
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= 9


def test_latencies_are_a_curve_for_each_level():
    levels = [Level(ClosedLoop(1)), Level(OpenLoop(5.0)), Level(ClosedLoop(2))]
    levels[0].sample.latencies.extend(number / 1e3 for number in range(1, 1001))
    levels[1].sample.latencies.append(0.2)
    drawing = ElementTree.fromstring(draw("t", levels) or "")
    assert len(drawing.findall(f"{SVG}polyline")) == 2
    assert draw("t", levels[2:]) is None


def test_percentiles_are_observed_values():
    level = Level(ClosedLoop(1))
    assert level.latency_ms(50) is None
    level.sample.latencies.extend([0.001, 0.002, 0.003, 1.0])
    assert [level.latency_ms(p) for p in (0, 50, 99, 100)] == [1.0, 3.0, 1000.0, 1000.0]
