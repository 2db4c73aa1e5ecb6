"""The command line of `fovea serve`: Triton's flag names, and `Settings` behind each."""

import shlex
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fovea_engines.repository.repository import DEFAULT_REPOSITORY
from fovea_preprocess.errors import InvalidOption
from fovea_server.cli.flags import GROUPS
from fovea_server.cli.main import app
from fovea_server.cli.serve import read_settings
from fovea_server.cli.triton_flags import REFUSED, WITHOUT_EFFECT
from fovea_server.settings import ModelControlMode, Settings, flag

# As tritonserver is started in its manuals and charts.
FROM_TRITON = shlex.split(
    "--model-repository=/models --model-control-mode=explicit --load-model=a --load-model=b "
    "--strict-readiness=false --exit-on-error true --exit-timeout-secs 5 --allow-http true "
    "--http-address=0.0.0.0 --http-port 9000 --http-restricted-api=model-repository:key=value "
    "--allow-grpc=1 --grpc-port=9001 --grpc-use-ssl=false --disable-auto-complete-config "
    "--allow-metrics=0 --metrics-port 9002 --cache-config local,size=1048576 --log-verbose=1 "
    "--allow-client-shm=true --repository-poll-secs 3 --id=camera"
)
IDLE = "Accepted from Triton's command lines, without effect:"


def parse(*args: str) -> Settings:
    command = typer.main.get_command(app).get_command(None, "serve")
    params = command.make_context("serve", list(args)).params
    return read_settings(params.pop("repository"), params)


def test_no_before_a_switch_turns_it_off():
    settings = parse("--no-page", "--no-log-access")
    assert (settings.page, settings.log_access, settings.allow_grpc) == (False, False, True)
    assert parse("--page").page is True
    refused = CliRunner().invoke(app, ["serve", "--no-http-port"])
    assert refused.exit_code == 2
    assert "--no-http-port" in refused.output


def test_a_command_line_of_triton_is_understood():
    settings = parse(*FROM_TRITON)
    assert settings.model_repository == (Path("/models"),)
    assert settings.model_control_mode is ModelControlMode.EXPLICIT
    assert settings.load_model == ("a", "b")
    assert (settings.strict_readiness, settings.exit_on_error) == (False, True)
    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == (9000, 9001, 9002)
    assert (settings.allow_http, settings.allow_grpc, settings.allow_metrics) == (True, True, False)
    assert settings.disable_auto_complete_config
    assert settings.allow_client_shm
    assert settings.exit_timeout_secs == 5


def test_one_address_is_that_of_all_three_ports():
    given = parse("--host", "0.0.0.0")
    assert (given.grpc_address, given.metrics_address) == ("0.0.0.0", "0.0.0.0")
    given = parse("--host", "0.0.0.0", "--metrics-address", "127.0.0.1")
    assert (given.grpc_address, given.metrics_address) == ("0.0.0.0", "127.0.0.1")


@pytest.mark.parametrize(
    "said", [["--allow-url"], ["--allow-url=true"], ["--allow-url", "true"], ["--allow-url=1"]]
)
def test_a_switch_stands_alone_or_has_a_value(said):
    assert parse(*said).allow_url
    assert parse(*said, "models").model_repository == (Path("models"),)
    assert not parse(*said, "--allow-url=false").allow_url


def test_old_names_and_the_argument():
    assert parse("models", "--port", "9000").http_port == 9000
    assert parse("--model-store=models").model_repository == (Path("models"),)
    both = (Path("models"), Path("others"))
    for second in ("--model-repository=others", "--model-store=others", "--repository=others"):
        assert parse("--model-repository=models", second).model_repository == both
        with pytest.raises(InvalidOption):
            parse("models", second)


def test_an_unset_flag_leaves_the_environment_in_charge(monkeypatch):
    monkeypatch.setenv("FOVEA_HTTP_PORT", "9000")
    assert parse().http_port == 9000
    assert parse("--http-port=9001").http_port == 9001


@pytest.mark.parametrize("name", ["load_model", "http_restricted_api", "trace_config"])
def test_a_flag_that_may_be_repeated_has_one_value_in_the_environment(name, monkeypatch):
    monkeypatch.setenv("FOVEA_MODEL_CONTROL_MODE", "explicit")
    monkeypatch.setenv(f"FOVEA_{name.upper()}", "a, b")
    assert getattr(parse(), name) == ("a, b",)


def test_the_repository_of_the_variable_is_that_of_every_command(monkeypatch, tmp_path):
    assert parse().model_repository == (DEFAULT_REPOSITORY,)
    monkeypatch.setenv("FOVEA_MODEL_REPOSITORY", str(tmp_path / "a b"))
    assert parse().model_repository == (tmp_path / "a b",)
    for over in (["models"], ["--repository=models"]):
        assert parse(*over).model_repository == (Path("models"),)
    for name in typer.main.get_command(app).commands:
        if name not in ("serve", "sensitivity", "edit", "doctor", "health", "demo", "init"):
            command = ("ray", "deploy") if name == "ray" else (name,)
            told = CliRunner().invoke(app, [*command, "--help"]).stdout
            assert "env var: FOVEA_MODEL_REPOSITORY" in " ".join(told.split()), name


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        (["--url-timeout-s=1"], "--allow-url"),
        (["--url-allow-private"], "--allow-url"),
        (["--grpc-server-cert=c.pem"], "--grpc-use-ssl"),
        (["--grpc-use-ssl", "--grpc-root-cert=c.pem"], "--grpc-use-ssl-mutual"),
        (["--label-studio-url=http://studio:8080"], "--api=label-studio"),
        (["--api=label-studio", "--label-studio-token=x"], "--label-studio-url=http://h"),
    ],
)
def test_a_flag_that_would_be_missed_needs_another(flags, needed):
    result = CliRunner().invoke(app, ["serve", *flags])
    assert result.exit_code == 2
    assert f"without {needed.partition('=http')[0].replace('=', ' ')}: " in result.stderr
    assert parse(*flags, needed)


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        (["--metrics-port=9002", "--allow-metrics=0"], "--allow-metrics"),
        (["--grpc-keepalive-time=9", "--allow-grpc=0"], "--allow-grpc"),
        (["--http-port=9", "--allow-http=0"], "--allow-http"),
        (["--repository-poll-secs=3"], "--model-control-mode=poll"),
        (["--repository-max-gb=1"], "a store URL in --model-repository"),
    ],
)
def test_what_tritons_command_lines_often_say_in_vain_is_told(flags, needed, capsys):
    assert parse(*flags)
    told = capsys.readouterr().err
    assert told.startswith(f"{flags[0].split('=')[0]} has no effect ")
    assert needed in told
    assert parse("--http-address=::1", "--allow-http=0")
    assert not capsys.readouterr().err


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_what_only_tunes_triton_is_taken_and_said_to_be_idle(name, capsys):
    assert parse(flag(name), "1") == Settings()
    assert capsys.readouterr().err.startswith(f"{flag(name)} has no effect ")


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_missed_is_refused_where_it_is_asked_for(name, capsys):
    for off in ("false", "0", "off"):
        assert parse(f"{flag(name)}={off}") == Settings()
    assert not capsys.readouterr().err
    with pytest.raises(InvalidOption, match=flag(name)):
        parse(f"{flag(name)}=execution_count")


def test_old_flags_of_triton_mean_what_took_their_place():
    assert parse("--strict-model-config=true").disable_auto_complete_config
    assert not parse("--strict-model-config=false").disable_auto_complete_config
    assert parse("--response-cache-byte-size=1000").cache_config == "local,size=1000"
    traced = parse("--trace-file=file", "--trace-level=TIMESTAMPS", "--trace-rate=1")
    assert set(traced.trace_config) == {"triton,file=file", "level=TIMESTAMPS", "rate=1"}
    assert parse("--trace-count=5", "--trace-config=rate=2").trace_config == ("rate=2", "count=5")


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ("as://account/container", "az://"),
        ("s3://key:hush@bucket/models", "s3://***@bucket"),
        ("https://host/models?sig=hush", "environment"),
        ("hf://models", "hf://ORG/NAME@REVISION/PREFIX"),
    ],
)
def test_a_store_that_cannot_be_meant_is_refused(store, told, monkeypatch):
    said = CliRunner().invoke(app, ["serve", f"--model-repository={store}"])
    typed = CliRunner().invoke(app, ["serve", store])
    monkeypatch.setenv("FOVEA_MODEL_REPOSITORY", store)
    set_ = CliRunner().invoke(app, ["serve"])
    assert said.exit_code == set_.exit_code == typed.exit_code == 2
    assert told in said.stderr
    assert "hush" not in said.stderr
    assert said.stderr == set_.stderr == typed.stderr


def test_a_store_takes_packages_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    cache = f"--repository-cache={tmp_path}"
    said = CliRunner().invoke(app, ["serve", "s3://bucket/models", cache])
    assert said.exit_code == 2
    assert "pip install 'fovea-serve[remote]'" in said.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--http-port=9000", "--grpc-port=9000"],
        ["--http-port=9000", "--grpc-port=9002"],
        ["--grpc-port=9000", "--metrics-port=9000", "--metrics-address=0.0.0.0"],
        ["--load-model=digits"],
        ["--load-model=*", "--model-control-mode=poll"],
    ],
)
def test_what_does_not_go_together_is_told_with_what_to_do(args):
    result = CliRunner().invoke(app, ["serve", *args])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --")
    assert "give" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--http-port=0", "--grpc-port=0", "--metrics-port=0"],
        ["--http-port=8001", "--allow-grpc=false"],
        ["--http-port=9000", "--grpc-port=9000", "--grpc-address=127.0.0.2"],
    ],
)
def test_ports_that_may_be_alike(args):
    assert parse(*args)


@pytest.mark.parametrize(
    ("args", "ports"),
    [
        ([], (8000, 8001, 8002)),
        (["--port=9400"], (9400, 9401, 9402)),
        (["--port=9400", "--grpc-port=9500"], (9400, 9500, 9402)),
        (["--port=9400", "--metrics-port=8002"], (9400, 9401, 8002)),
        (["--grpc-port=9500"], (8000, 9500, 8002)),
        (["--port=8002"], (8002, 8003, 8004)),
        (["--port=0"], (0, 0, 0)),
        (["--port=0", "--grpc-port=9500"], (0, 9500, 0)),
    ],
)
def test_ports_follow_that_of_http_unless_they_are_given(args, ports, monkeypatch):
    settings = parse(*args)
    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == ports
    for arg in args:
        name, _, port = arg.partition("=")
        variable = {"--port": "HTTP", "--grpc-port": "GRPC", "--metrics-port": "METRICS"}[name]
        monkeypatch.setenv(f"FOVEA_{variable}_PORT", port)
    of_environment = parse()
    assert of_environment == settings


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--http-port=65534"], "--metrics-port is '65536'"),
        (["--http-port=65535"], "--grpc-port is '65536'"),
        (["--http-port=abc"], "--http-port is 'abc'"),
        (["--allow-url=perhaps"], "--allow-url is 'perhaps'"),
        (["--model-control-mode=auto"], "'none', 'poll' or 'explicit'"),
        (["--no-such-flag=true"], "--no-such-flag"),
        (["--log-format=X"], "'default', 'ISO8601' or 'json'"),
        (["--grpc-infer-response-compression-level=9"], "'none', 'low', 'medium' or 'high'"),
    ],
)
def test_a_wrong_flag_is_named(args, told):
    result = CliRunner().invoke(app, ["serve", *args])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert told in result.stderr
    assert "Value error" not in result.stderr


def test_help_shows_every_setting_under_the_title_of_its_group():
    lines = CliRunner().invoke(app, ["serve", "--help-all"]).stdout.splitlines()
    lines = lines[lines.index("Arguments:") : lines.index(IDLE)]
    shown = [line.split()[0].strip(",") for line in lines if line.startswith("  -")]
    assert set(shown) == {"-h", "--help-all", *map(flag, Settings.model_fields)}
    assert len(shown) == len(set(shown))
    assert all(field.description for field in Settings.model_fields.values())
    titled = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titled == ["Arguments:", *(f"{title}:" for title in GROUPS), "Options:"]
    for title, first in GROUPS.items():
        assert lines[lines.index(f"{title}:") + 1].startswith(f"  {flag(first)}")
    everyday = CliRunner().invoke(app, ["serve", "--help"]).stdout
    assert "--http-port" in everyday
    assert "--grpc-keepalive-time" not in everyday
