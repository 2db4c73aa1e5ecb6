"""HEAD has every command, argument and option of the older version, with its default."""

import pytest
from tests.upgrade.conftest import Fovea
from tests.upgrade.recorded import load
from tests.upgrade.surface import differences, help_table, helps, unintended

_REWORDED = {
    "build --max-batch": ("1,orthatof--profile", "1,orthelargestbatchsizeof--profile"),
    "build --tokenizer": ("theonebesidethemodel", "tokenizer.jsoninthemodel'sfolder"),
    "build --images": (
        "thoseof--calibration,or3thatshipwithFovea",
        "theimagesof--calibration,or3imagesthatshipwithFovea",
    ),
    "build --image-front": ("forTensorRT", "onlyforTensorRTengines"),
    "build --no-image-front": ("forTensorRT", "onlyforTensorRTengines"),
    "build --nms-tail": ("forTensorRT", "onlyforTensorRTengines"),
    "build --no-nms-tail": ("forTensorRT", "onlyforTensorRTengines"),
    "build --compute-capability": ("theGPUthatishere", "theGPUofthismachine"),
    "diff --images": ("3thatshipwithFovea", "3imagesthatshipwithFovea"),
    "promote --max-p99": ("any", "nolimit"),
    "promote --max-disagreement": ("any", "nolimit"),
    "sensitivity --images": ("thoseof--calibration", "theimagesof--calibration"),
    "eval --conf": ("wherethemeanF1ishighest", "thescorewiththehighestmeanF1"),
}
"""Option -> its default in the older help and in this one, which mean the same; without blanks."""

INTENDED: dict[str, str] = {
    **{
        f"fovea {option}: default was {old!r}, and is {new!r}": "reworded"
        for option, (old, new) in _REWORDED.items()
    },
    "fovea tune --p99: default was": "without a limit the result answered after seconds",
    "fovea build --profile: default was '1,N,N": "a single image has kernels of its own",
    **{
        f"fovea bench --{option}: is gone": "benchmarks/mlperf.py runs LoadGen"
        for option in ("mlperf", "over", "quick", "p99", "logs")
    },
    **{
        f"fovea {command} --version: default was": "it is the version that servers use"
        for command in ("bench", "eval", "index", "predict")
    },
    "fovea history": "`fovea versions --history` does the same; the name works, and is not listed",
}
"""Intended changes: the beginning of the line that the test prints, and the reason."""


def test_commands_and_options(fovea: Fovea, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)

    def ask(*arguments: str) -> str:
        # `serve --help` shows the flags of every day.
        code, told, _ = fovea(*(arguments if arguments[0] != "serve" else ("serve", "--help-all")))
        assert code == 0
        return told

    old, new = help_table(load("help.json")), help_table(helps(ask))
    found = unintended(differences(old, new), INTENDED)
    assert not found, found


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("--conf NUMBER ", "--score NUMBER ", "fovea predict --conf: is gone"),
        ("[default: 0.25]", "[default: 0.3]", "fovea predict --conf: default was"),
        ("--mask FORM", "--mask [rle|png]", "fovea predict --mask: choices was"),
    ],
)
def test_what_is_gone_is_told(before: str, after: str, told: str) -> None:
    texts = load("help.json")
    changed = {**texts, "fovea predict": texts["fovea predict"].replace(before, after)}
    assert texts != changed
    found = differences(help_table(texts), help_table(changed))
    assert any(each.startswith(told) for each in found), found
