"""The dashboard, answered by a real Prometheus that scrapes a real server, and typed by Grafana."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML
from tests.conftest import ROOT
from tests.server.metrics.conftest import MIN_LIVE, control, predict
from tests.server.metrics.prometheus import dashboard, wait_for
from tests.system import program

from fovea_server.metrics.metrics import FORMER

pytestmark = pytest.mark.real

VARIABLES = {"$__rate_interval": "1m", "$__range": "1m", "$instance": ".*", "$model": ".*"}


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
    shown = [panel for panel in panels() if "nv_gpu_" not in panel[1]]
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
    definitions = {v["name"]: v["definition"] for v in dashboard()["templating"]["list"]}
    assert definitions == {
        "instance": "label_values(fovea_build_info, instance)",
        "model": "label_values(fovea_model_ready, model)",
    }
    assert asked.label_values("instance", "fovea_build_info") == [here]
    assert asked.label_values("model", "fovea_model_ready") == ["digits"]


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
            del variable["definition"]
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
