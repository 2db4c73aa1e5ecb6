"""A real Prometheus scrapes a real server, answers the dashboard, and fires alerts."""

import httpx
import pytest
from tests.server.metrics.conftest import EXPLICIT, MIN_LIVE, control, predict
from tests.server.metrics.prometheus import wait_for
from tests.server.metrics.promql import dashboard, panel_queries
from tests.serving import start_server

pytestmark = pytest.mark.real

OF_GPUS = "nv_gpu_"


def test_it_has_numbers_for_every_panel(served, prometheus, scene):
    asked = prometheus(served.metrics_port)
    panels = [each for each in panel_queries() if OF_GPUS not in each[1]]
    assert len(panels) > 30

    def empty() -> set[str]:
        """The panels without a number, of which a server under load has more each time."""
        # A load forgets the images before.
        assert {predict(served) for _ in range(MIN_LIVE)} == {200}
        wait_for(lambda: asked.query("fovea_drift"))
        late = {"x-request-timeout-ms": "1"}
        assert httpx.post(
            served.predict_url("digits"), content=scene, headers=late
        ).status_code in (200, 504)
        control(served, "unload")
        assert predict(served) == 503
        wait_for(lambda: asked.firing("FoveaModelUnavailable"))
        without = {
            title for title, query, _, instant in panels if not asked.values(query, instant=instant)
        }
        control(served, "load")
        return without

    wait_for(lambda: empty() == set())


def test_it_sees_the_first_request(demo_repository, prometheus, tmp_path):
    server = start_server(demo_repository, tmp_path)
    try:
        asked = prometheus(server.metrics_port)
        wait_for(lambda: asked.query("fovea_model_ready == 1"))
        assert predict(server) == 200
        wait_for(lambda: asked.query("sum(rate(fovea_request_duration_seconds_count[1m])) > 0"))
    finally:
        server.process.kill()
        server.process.wait()


def test_it_knows_the_values_of_the_variables(served, prometheus):
    asked = prometheus(served.metrics_port)
    here = f"127.0.0.1:{served.metrics_port}"
    wait_for(lambda: asked.query(f'fovea_model_ready{{instance="{here}"}}'))
    definitions = {v["name"]: v["definition"] for v in dashboard()["templating"]["list"]}
    assert definitions == {
        "instance": "label_values(fovea_build_info, instance)",
        "model": "label_values(fovea_model_ready, model)",
    }
    assert asked.label_values("instance", "fovea_build_info") == [here]
    assert asked.label_values("model", "fovea_model_ready") == ["digits"]


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
