"""The dashboard has the form that Grafana publishes for its version, in TypeScript."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tests.server.metrics.promql import ROOT, dashboard
from tests.system import program

pytestmark = pytest.mark.real

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


def test_a_field_that_is_wrong_is_found(errors: Callable[[Json], str]) -> None:
    wrong: list[tuple[tuple[str, ...], str, object]] = [
        (("options", "legend"), "placement", "botom"),
        (("options", "legend"), "placment", "bottom"),
        (("fieldConfig", "defaults"), "decimals", "two"),
        (("fieldConfig", "defaults", "custom"), "fillOpacty", 20),
        (("gridPos",), "width", 8),
        ((), "titel", "Requests"),
    ]
    board = dashboard()
    panels = [panel for panel in board["panels"] if panel["type"] == "timeseries"]
    for panel, (place, key, value) in zip(panels, wrong, strict=False):
        part = panel
        for name in place:
            part = part[name]
        part[key] = value
    # Each panel is a line of the program.
    lines = set(re.findall(r"dashboard\.ts\((\d+),\d+\): error", errors(board)))
    assert len(lines) == len(wrong)
