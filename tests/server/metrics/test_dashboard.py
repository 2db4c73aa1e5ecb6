"""The dashboard, answered by a real Prometheus that scrapes a real server, and typed by Grafana."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML
from tests.conftest import ROOT
from tests.keyed import key, tensor
from tests.server.metrics.conftest import MIN_LIVE, control, predict
from tests.server.metrics.prometheus import MONITORING, dashboard, wait_for
from tests.serving import start_server
from tests.system import program
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from fovea_server.metrics.metrics import FORMER

pytestmark = pytest.mark.real

VARIABLES = {
    **{"$__rate_interval": "1m", "$__range": "1m"},
    **{"$job": "fovea", "$instance": ".*", "$model": ".*"},
}
KEYS = "fovea_key_"


def panels() -> Iterator[tuple[str, str, set[str], bool]]:
    """Title, query with values for variables, labels of the legend, and if it is asked for now."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            legend = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
            yield panel["title"], query, legend, target.get("instant", False)


def test_every_panel_has_numbers_with_the_labels_of_its_legend(served, prometheus, scene, known):
    asked = prometheus(served.metrics_port)
    # This machine has no GPU: the names of their metrics are in a table.
    of_gpus = {name for _, query, _, _ in panels() for name in re.findall(r"nv_gpu_\w+", query)}
    assert of_gpus <= known.keys()
    # This server has no keys: another test has the panels of keys.
    shown = [panel for panel in panels() if "nv_gpu_" not in panel[1] and KEYS not in panel[1]]
    assert len(shown) > 30

    def empty() -> set[str]:
        """The panels without a number: a server under load has fewer of them each time."""
        # A load forgets the images before.
        assert {predict(served) for _ in range(MIN_LIVE)} == {200}
        wait_for(lambda: asked.query("fovea_drift"))
        late = {"x-request-timeout-ms": "1"}
        answer = httpx.post(served.predict_url("digits"), content=scene, headers=late)
        assert answer.status_code in (200, 504)
        control(served, "unload")
        assert predict(served) == 503
        wait_for(lambda: asked.firing("FoveaModelUnavailable"))
        without = {
            title
            for title, query, legend, instant in shown
            if not any(legend <= labels for labels in asked.labels(query, instant=instant))
        }
        control(served, "load")
        return without

    wait_for(lambda: empty() == set())


def test_it_knows_the_values_of_the_variables(served, prometheus):
    asked = prometheus(served.metrics_port)
    here = f"127.0.0.1:{served.metrics_port}"
    wait_for(lambda: asked.query(f'fovea_model_ready{{instance="{here}"}}'))
    _, *queries = dashboard()["templating"]["list"]
    assert {v["name"]: v["definition"] for v in queries} == {
        "job": "label_values(up, job)",
        "instance": "label_values(fovea_build_info, instance)",
        "model": "label_values(fovea_model_ready, model)",
    }
    assert asked.label_values("job", "up") == [queries[0]["current"]["value"][0]] == ["fovea"]
    assert asked.label_values("instance", "fovea_build_info") == [here]
    assert asked.label_values("model", "fovea_model_ready") == ["digits"]


def test_every_query_has_the_chosen_data_source_which_is_the_provisioned_one_at_first() -> None:
    source, *queries = dashboard()["templating"]["list"]
    provisioned = MONITORING / "grafana/provisioning/datasources/prometheus.yml"
    [given] = YAML(typ="safe").load(provisioned)["datasources"]
    about = (source["name"], source["type"], source["query"])
    assert about == ("datasource", "datasource", given["type"])
    assert source["current"] == {"text": given["name"], "value": given["uid"]}
    shown = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    targets = [target for panel in shown for target in panel["targets"]]
    asking = [*queries, *dashboard()["annotations"]["list"], *shown, *targets]
    chosen = {"type": given["type"], "uid": "${datasource}"}
    assert [each for each in asking if each["datasource"] != chosen] == []


def test_a_key_over_its_rate_and_malformed_requests_are_no_faults_of_the_server(
    demo_repository, prometheus, scene, tmp_path
):
    file = tmp_path / "keys.json"
    reading = key("add", "prometheus", "--keys", file, "--scope", "metrics")
    headers = {"x-api-key": key("add", "camera", "--keys", file, "--rate", "1/m")}
    server = start_server(demo_repository, tmp_path, [f"--keys={file}"])
    infer = f"{server.url}/v2/models/digits/infer"
    input_ = {"name": "images", "shape": [1, 3, 320, 320], "datatype": "FP32"}
    short = json.dumps({"inputs": [input_ | {"data": [0.5]}]}).encode()
    with ExitStack() as stack:
        stack.callback(server.process.wait)
        stack.callback(server.process.kill)
        http = stack.enter_context(httpx.Client(headers=headers, timeout=60))
        rpc = stack.enter_context(grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}"))
        asked = prometheus(server.metrics_port, reading)
        wait_for(lambda: asked.query("fovea_ready == 1"))
        assert http.post(server.predict_url("digits"), content=scene).status_code == 200

        def counted() -> set[str]:
            """The statuses of the requests, whose numbers grow."""
            malformed = [http.post(infer, content=body) for body in (scene, b"{", b"{}", short)]
            assert [answer.status_code for answer in malformed] == [500] * 4
            assert http.post(server.predict_url("digits"), content=scene).status_code == 429
            with pytest.raises(InferenceServerException) as caught:
                rpc.infer("digits", [tensor()], headers=headers)
            assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
            rates = asked.query("rate(fovea_request_duration_seconds_count[1m]) > 0")
            return {each["metric"]["status"] for each in rates}

        wait_for(lambda: counted() - {"200"} == {"400", "rate_limited"})
        wait_for(lambda: asked.firing("FoveaBadRequests"))
        assert asked.firing("FoveaErrors") == asked.firing("FoveaRequestsRejected") == []
        for title, query, legend, instant in panels():
            if KEYS in query:
                assert any(legend <= found for found in asked.labels(query, instant=instant)), title
            if title in ("Rejected", "Errors"):
                assert [each["value"][1] for each in asked.query(query)] == ["0"], title
    text = server.log.read_text()
    assert all(f" status={sent} " in text for sent in (500, 429, "RESOURCE_EXHAUSTED"))


def test_every_metric_of_fovea_is_on_the_dashboard(known):
    text = json.dumps(dashboard())
    own = {re.sub(r"_(bucket|count|sum)$", "", name) for name in known if name.startswith("fovea")}
    assert {name for name in own - {*FORMER.values()} if name not in text} == set()


INSTALLED = Path(sys.prefix) / "grafana"
TYPES = "@grafana/schema/dist/types"
# Grafana's own types want every option, and each word by its name in an enumeration; in a file
# options may be left out, and words are themselves. Fields that are none of the type stay errors.
HEAD = """
type Plain<T> = T extends string ? `${T}` : T extends number | boolean ? T
  : T extends Array<infer E> ? Array<Plain<E>>
  : T extends object ? { [K in keyof T]?: Plain<T[K]> } : T;
type Of<O, C> = Plain<Omit<board.Panel, "options" | "fieldConfig"> & {
  options: O;
  fieldConfig: {
    defaults: Omit<board.FieldConfig, "custom"> & { custom?: C };
    overrides: board.FieldConfigSource["overrides"];
  };
}>;
"""
CONFIG = {
    "compilerOptions": {
        **{"noEmit": True, "strict": True, "skipLibCheck": True},
        **{"target": "es2020", "moduleResolution": "node", "baseUrl": str(INSTALLED)},
        "paths": {
            "@grafana/schema": [f"node_modules/{TYPES}/index.d.ts"],
            f"{TYPES}/*": [f"node_modules/{TYPES}/*"],
        },
    },
    "files": ["dashboard.ts"],
}

Json = dict[str, Any]


def written(board: Json) -> Iterator[str]:
    """A program with the dashboard, each panel under the types of its kind."""
    yield f'import type * as board from "{TYPES}/raw/dashboard/x/types.gen";'
    yield HEAD
    for kind in sorted({panel["type"] for panel in board["panels"]} - {"row"}):
        path = f"raw/composable/{kind}/panelcfg/x/types.gen"
        yield f'import type * as {kind} from "{TYPES}/{path}";'
        own = (INSTALLED / "node_modules" / TYPES / f"{path}.d.ts").read_text()
        custom = f"{kind}.FieldConfig" if " FieldConfig " in own else "{}"
        yield f"type Of_{kind} = Of<{kind}.Options, {custom}>;"
    yield "type Of_row = Plain<board.RowPanel>;"
    for panel in board["panels"]:
        yield f"export const p{panel['id']}: Of_{panel['type']} = {json.dumps(panel)};"
    rest = {key: value for key, value in board.items() if key != "panels"}
    yield f'export const rest: Plain<Omit<board.Dashboard, "panels">> = {json.dumps(rest)};'


@pytest.fixture
def errors(tmp_path: Path) -> Callable[[Json], str]:
    """The compiler's errors about a dashboard."""
    if not INSTALLED.is_dir():
        pytest.skip("Grafana's types are not there: make .venv/grafana, with npm")
    compiler = program("tsc", package="node-typescript")

    def check(board: Json) -> str:
        # These are the data source's, and not in the type.
        for variable in board["templating"]["list"]:
            variable.pop("definition", None)
        for annotation in board["annotations"]["list"]:
            del annotation["titleFormat"], annotation["target"]
        (tmp_path / "tsconfig.json").write_text(json.dumps(CONFIG))
        (tmp_path / "dashboard.ts").write_text("\n".join(written(board)))
        command = [compiler, "--project", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    return check


def test_grafana_knows_every_field_of_the_dashboard(errors: Callable[[Json], str]) -> None:
    assert errors(dashboard()) == ""
    package = json.loads((INSTALLED / "node_modules/@grafana/schema/package.json").read_text())
    compose = YAML(typ="safe").load(ROOT / "docker-compose.yml")
    assert compose["services"]["grafana"]["image"] == f"grafana/grafana:{package['version']}"
