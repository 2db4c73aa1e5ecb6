"""Clients that others' generators make from the OpenAPI document compile, and work.

Each program here sends an image, two images of which one is none, and JSON; reads masks in every
form, a drawn image, a model and an error; and prints what it read.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import httpx
import pytest
from tests.built import build
from tests.serving import start_server
from tests.system import program, skip_for_want_of

from fovea_engines.build.plan import BuildPlan

pytestmark = [pytest.mark.real, pytest.mark.slow]

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "server" / "fovea_server" / "demo"
INSTALLED = Path(sys.prefix) / "generators"
PACKAGES = INSTALLED / "site-packages"
NODE = INSTALLED / "node_modules"
OPTIONS = {
    "go": "packageName: fovea",
    "java": "openApiNullable: false",
    "python": "packageName: openapi_client",
    "typescript-fetch": "importFileExtension: .js",
}
# The compiler of Java takes what a client imports from the generator's own archive, and from these.
JARS = ("httpclient5", "httpcore5", "httpcore5-h2", "slf4j-api", "geronimo-annotation-1.3-spec")
# A program that ends soon is not worth Java's second compiler, which takes most of the time.
BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@pytest.fixture(scope="module")
def server(demo_repository, tmp_path_factory):
    repository = tmp_path_factory.mktemp("served") / "repository"
    shutil.copytree(demo_repository, repository)
    segmenter = DEMO / "digits-segment.onnx"
    build(BuildPlan(segmenter, "shapes", repository, "onnxruntime"))
    server = start_server(repository, tmp_path_factory.mktemp("log"))
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def document(server, tmp_path_factory) -> Path:
    if not PACKAGES.is_dir():
        pytest.skip(f"{INSTALLED} is absent: `make test-real` installs it")
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_bytes(httpx.get(server.url + "/openapi.json").content)
    return path


@pytest.fixture(scope="module")
def generated(document) -> Path:
    """The folder of the clients that openapi-generator makes, by language."""
    java = program("java", package="default-jdk-headless")
    folder = document.parent
    for language, option in OPTIONS.items():
        (folder / f"{language}.yaml").write_text(
            f"generatorName: {language}\ninputSpec: {document}\noutputDir: {folder / language}\n"
            f"additionalProperties:\n  {option}\n"
            + ("library: apache-httpclient\n" if language == "java" else "")
        )
    jar = PACKAGES / "openapi_generator_cli" / "openapi-generator.jar"
    run(java, *BRIEF, "-jar", jar, "batch", *folder.glob("*.yaml"))
    return folder


def run(*command: object, cwd: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def go(generated: Path, folder: Path) -> list[object]:
    compiler = program("go", package="golang-go")
    shutil.copytree(
        generated / "go", folder / "fovea", ignore=shutil.ignore_patterns("test", "go.*")
    )
    shutil.copy(HERE / "main.go", folder)
    (folder / "go.mod").write_text("module generated\n\ngo 1.19\n")
    run(compiler, "build", "-o", "main", cwd=folder, GOCACHE=str(folder / "cache"))
    return [folder / "main"]


def java(generated: Path, folder: Path) -> list[object]:
    compiler = program("javac", package="default-jdk-headless")
    jars = [Path("/usr/share/java") / f"{name}.jar" for name in JARS]
    if not jars[0].exists():
        skip_for_want_of("libhttpclient5-java", f"there is no {jars[0]}")
    if not jars[-1].exists():
        skip_for_want_of("libgeronimo-annotation-1.3-spec-java", f"there is no {jars[-1]}")
    archive = PACKAGES / "openapi_generator_cli" / "openapi-generator.jar"
    path = os.pathsep.join(map(str, [folder, archive, *jars]))
    sources = (generated / "java" / "src" / "main").rglob("*.java")
    brief = [f"-J{flag}" for flag in BRIEF]
    places = ("-proc:none", "-nowarn", "-d", folder, "-cp", path)
    run(compiler, *brief, *places, HERE / "Main.java", *sources)
    return ["java", *BRIEF, "-cp", path, "Main"]


def typescript(source: Path, folder: Path) -> list[object]:
    node = program("node", package="nodejs")
    (folder / "node_modules").symlink_to(NODE)
    (folder / "package.json").write_text('{"type": "module"}\n')
    shutil.copy(source, folder / "main.ts")
    run(
        *(NODE / ".bin" / "tsc", "--strict", "--target", "es2022", "--module", "nodenext"),
        # The declarations of Node and of the language are not what is checked.
        *("--types", "node", "--skipLibCheck", "--outDir", folder, folder / "main.ts"),
        cwd=folder,
    )
    return [node, folder / "main.js"]


def typescript_fetch(generated: Path, folder: Path) -> list[object]:
    shutil.copytree(generated / "typescript-fetch", folder / "fovea")
    return typescript(HERE / "fetch.ts", folder)


def openapi_typescript(document: Path, folder: Path) -> list[object]:
    run(NODE / ".bin" / "openapi-typescript", document, "-o", folder / "schema.ts")
    return typescript(HERE / "types.ts", folder)


def python(generated: Path, folder: Path) -> list[object]:
    shutil.copytree(generated / "python" / "openapi_client", folder / "openapi_client")
    return [sys.executable, HERE / "pydantic_client.py"]


def openapi_python_client(document: Path, folder: Path) -> list[object]:
    config = folder / "config.yml"
    config.write_text(
        "post_hooks: []\ncontent_type_overrides:\n"
        "  image/jpeg: application/octet-stream\n  image/png: application/octet-stream\n"
    )
    run(
        *(sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"),
        *("--path", document, "--output-path", folder / "fovea_generated"),
        *("--config", config, "--fail-on-warning"),
        PYTHONPATH=str(PACKAGES),
    )
    return [sys.executable, HERE / "attrs_client.py"]


@pytest.mark.parametrize(
    "make", [go, java, typescript_fetch, python, openapi_typescript, openapi_python_client]
)
def test_it_compiles_and_works(make, server, tmp_path, request):
    alone = make in (openapi_typescript, openapi_python_client)
    command = make(request.getfixturevalue("document" if alone else "generated"), tmp_path)
    image, drawn = DEMO / "scene-1.jpg", tmp_path / "drawn.jpg"
    said = run(
        *(*command, server.url, image, HERE / "main.go", drawn),
        PYTHONPATH=os.pathsep.join(map(str, (tmp_path, PACKAGES))),
    )
    truth = json.loads((DEMO / "scenes.json").read_text())["scene-1.jpg"]
    names = " ".join(sorted(each["class_name"] for each in truth))
    assert said.splitlines() == [
        f"image: detect {names}",
        f"two: {names} invalid_image",
        f"json: {names}",
        "mask: counts",
        "mask: polygons",
        "mask: png",
        "model: detect 10",
        "error: 404 not_found",
    ]
    plain, picture = cv2.imread(str(image)), cv2.imread(str(drawn))
    assert picture.shape == plain.shape
    assert (cv2.absdiff(picture, plain).max(axis=2) > 64).mean() > 0.01
