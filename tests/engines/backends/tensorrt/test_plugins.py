"""Libraries of plugins: compiled here, and registered with TensorRT for RTX itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.rtx import trt  # noqa: F401  skips where TensorRT for RTX is not installed
from tests.engines.shared_library import compile_library

from fovea_engines.repository.files import file_sha256
from fovea_engines.repository.options import Plugin
from fovea_preprocess.errors import InvalidOption, NotFound

pytestmark = pytest.mark.real

# IPluginCreatorV3One of NvInferRuntime.h, as far as registering one calls it.
CREATOR = """
#include <cstdint>
#include <cstdio>
#include <cstdlib>
struct Info { char const* kind; int32_t major, minor; };
struct Creator {
    virtual int32_t getAPILanguage() const noexcept { return 0; }
    virtual Info getInterfaceInfo() const noexcept { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
    virtual ~Creator() noexcept = default;
    virtual void* createPlugin(char const*, void const*, int32_t) noexcept { return nullptr; }
    virtual void const* getFieldNames() noexcept { return nullptr; }
    virtual char const* getPluginName() const noexcept { return "Swirl"; }
    virtual char const* getPluginVersion() const noexcept { return "3"; }
    virtual char const* getPluginNamespace() const noexcept { return ""; }
};
static Creator creator;
static Creator* const creators[] = {&creator};
extern "C" Creator* const* getCreators(int32_t& count) { count = 1; return creators; }
extern "C" void setLoggerFinder(void*) {}
"""
MARK = '#include <stdlib.h>\n__attribute__((constructor)) static void l() { system("touch %s"); }'

# A library stays in a process that has loaded it, so each test has a process of its own.
LOAD = """
import json, sys
from pathlib import Path
from fovea_engines.backends.tensorrt.runtime import load_runtime
from fovea_engines.backends.tensorrt.plugins import load_plugins
from fovea_engines.repository.options import Plugin
from fovea_preprocess.errors import FoveaError
runtime, said = load_runtime("tensorrt-rtx"), []
for path, sha256 in json.loads(sys.argv[1]):
    try:
        load_plugins(runtime, [Plugin(Path(path), sha256)])
        said.append("loaded")
    except FoveaError as error:
        said.append(f"{error.code}: {error}")
creators = runtime.trt.get_plugin_registry().all_creators
print(json.dumps([said, [f"{c.name} {c.plugin_version}" for c in creators]]))
"""


def load(*plugins):
    """What loading each says, and the creators that TensorRT then knows."""
    named = json.dumps([(str(plugin.path), plugin.sha256) for plugin in plugins])
    done = subprocess.run(
        [sys.executable, "-c", LOAD, named], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def swirl(tmp_path_factory):
    return compile_library(tmp_path_factory.mktemp("swirl") / "libswirl.so", CREATOR)


def test_a_library_is_named_by_its_absolute_path_and_digest(swirl, monkeypatch):
    monkeypatch.chdir(swirl.parent)
    plugin = Plugin.of(Path("libswirl.so"))
    assert plugin == Plugin(swirl.resolve(), file_sha256(swirl))


def test_its_plugins_become_tensorrts_once(swirl):
    plugin = Plugin.of(swirl)
    said, creators = load(plugin, plugin)
    assert said == ["loaded", "loaded"]
    assert creators.count("Swirl 3") == 1


def test_another_library_at_the_same_path_is_not_loaded(tmp_path):
    mark = tmp_path / "mark"
    library = compile_library(tmp_path / "libx.so", MARK % mark)
    [said], _ = load(Plugin(library, "0" * 64))
    assert said.startswith("invalid_model: ")
    assert "not the plugin library that the engine was built with" in said
    assert not mark.exists()
    # It is the digest that held it back.
    load(Plugin.of(library))
    assert mark.exists()


def test_a_library_that_has_gone_is_named(swirl, tmp_path):
    [said], _ = load(Plugin(tmp_path / "libgone.so", file_sha256(swirl)))
    assert said.startswith("not_found: ")
    assert "libgone.so does not exist" in said


def test_a_missing_symbol_is_told_by_its_name(tmp_path):
    source = 'extern "C" int elsewhere(); int here() { return elsewhere(); }'
    [said], _ = load(Plugin.of(compile_library(tmp_path / "liblost.so", source)))
    assert said.startswith("backend_unavailable: ")
    assert "undefined symbol: elsewhere" in said
    assert "build it for tensorrt-rtx 1." in said


def test_a_library_without_plugins_is_refused(tmp_path, swirl):
    empty = Plugin.of(compile_library(tmp_path / "libempty.so", "int nothing;"))
    twin = tmp_path / "libtwin.so"
    twin.write_bytes(swirl.read_bytes())
    said, _ = load(empty, Plugin.of(swirl), Plugin.of(twin))
    assert said[0].startswith("invalid_option: tensorrt-rtx 1.")
    assert "libempty.so (it registers no new plugin): give the library" in said[0]
    assert said[1] == "loaded"
    assert "libtwin.so (it registers no new plugin)" in said[2]


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF" + bytes(60)])
def test_what_is_no_library_is_refused_before_it_is_loaded(content, tmp_path):
    path = tmp_path / "plugin.so"
    path.write_bytes(content)
    with pytest.raises(InvalidOption, match=r"plugin\.so"):
        Plugin.of(path)


def test_an_object_file_is_no_library(tmp_path):
    unlinked = compile_library(tmp_path / "main.o", "int main() { return 0; }", "-c")
    with pytest.raises(InvalidOption):
        Plugin.of(unlinked)


def test_a_path_without_a_file_is_named(tmp_path):
    with pytest.raises(NotFound, match=r"no\.so"):
        Plugin.of(tmp_path / "no.so")
    with pytest.raises(InvalidOption):
        Plugin.of(tmp_path)
