"""The manifests of docker/kubernetes and docker/kserve: rendered, and checked as by a cluster."""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML
from tests.conftest import ROOT, SHARED
from tests.system import program

KUBERNETES = ROOT / "docker" / "kubernetes"
KSERVE = ROOT / "docker" / "kserve"
# Releases of which each manifest is checked: the oldest that it is for, and the newest there is.
RELEASES = ("1.29", "1.37")
_SCHEMAS = Path(sys.prefix) / "kubernetes"
_OLDEST_KUBECTL = 21

Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    with path.open() as stream:
        return list(YAML(typ="safe").load_all(stream))


def render(
    folder: Path, overlay: str, components: Sequence[str] = (), **fields: object
) -> dict[str, Document]:
    """Kind -> document, as `kubectl apply -k` of a kustomization with these fields would send them.

    `folder` is where it lies, and is empty.
    """
    kubectl = program("kubectl", package="kubernetes-client")
    version = subprocess.check_output([kubectl, "version", "--client", "-o", "json"])
    minor = int(re.match(r"\d+", json.loads(version)["clientVersion"]["minor"])[0])
    if minor < _OLDEST_KUBECTL:
        pytest.skip(f"kubectl 1.{minor} knows no components: take 1.{_OLDEST_KUBECTL} or newer")
    here = os.path.relpath(KUBERNETES.resolve(), folder.resolve())
    kustomization = {
        "resources": [f"{here}/{overlay}"],
        "components": [f"{here}/{name}" for name in components],
        **fields,
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    done = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    # A warning is a field that a newer kustomize does not take.
    assert (done.returncode, done.stderr) == (0, "")
    found = list(YAML(typ="safe").load_all(done.stdout))
    for each in found:
        if each["kind"] == "Secret":
            each["kind"] += f" {each['metadata']['name']}"
    assert len({each["kind"] for each in found}) == len(found)
    return {each["kind"]: each for each in found}


def check_builtin(document: Document, release: str) -> None:
    """Refuse what Kubernetes would, and unknown keys; ValidationError says what."""
    if not _SCHEMAS.is_dir():
        pytest.skip("there are no schemas of Kubernetes: make .venv/kubernetes")
    if str(_SCHEMAS) not in sys.path:
        sys.path.append(str(_SCHEMAS))
    import kubernetes_validate

    checked = kubernetes_validate.validate(document, release, strict=True)
    assert checked == release


def check_kserve(document: Document) -> None:
    """Refuse what KServe's CRD does, and unknown keys."""
    validator(document["kind"]).validate(document)


@cache
def validator(kind: str) -> Draft202012Validator:
    """Of a kind of KServe."""
    path = SHARED / "data" / "kserve" / f"{kind.lower()}s.crd.yaml.gz"
    if not path.is_file():
        pytest.skip(f"the CRDs of KServe are absent: {path} is not there")
    # A parser in Python takes seconds for two megabytes.
    with gzip.open(path) as stream:
        crd = yaml.load(stream, yaml.CSafeLoader)
    assert crd["spec"]["names"]["kind"] == kind
    [version] = crd["spec"]["versions"]
    schema = _closed(version["schema"]["openAPIV3Schema"])
    properties = schema["properties"]
    properties["apiVersion"]["const"] = f"{crd['spec']['group']}/{version['name']}"
    properties["kind"]["const"] = kind
    return Draft202012Validator(schema)


def _closed(schema: Any) -> Any:
    """A structural schema that refuses keys it does not name, as `kubectl apply` does."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    named = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if named and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed
