"""The engine card: written, read back, and refused when damaged."""

import dataclasses
import json

import pytest

from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.files import json_sha256
from fovea_preprocess.errors import InvalidModel, NotFound


def test_comes_back_equal(card, tmp_path):
    card.write(tmp_path / "card.json")
    assert EngineCard.read(tmp_path / "card.json") == card


def test_a_digest_of_json_does_not_depend_on_the_order_of_its_keys():
    assert json_sha256({"a": 1, "b": [2]}) == json_sha256({"b": [2], "a": 1})
    assert json_sha256({"a": 1}) != json_sha256({"a": 2})


def test_a_card_without_head_comes_back_equal(card):
    bare = dataclasses.replace(card, family=None, labels=None, preprocess=None, agreement=None)
    assert EngineCard.from_json(json.loads(json.dumps(bare.to_json()))) == bare


def fields(*, required):
    both = (dataclasses.MISSING, dataclasses.MISSING)
    return [
        f.name
        for f in dataclasses.fields(EngineCard)
        if ((f.default, f.default_factory) == both) is required
    ]


@pytest.mark.parametrize("field", fields(required=False))
def test_a_card_of_before_there_was_a_field_is_read(card, field):
    value = card.to_json()
    del value[field]
    [at] = (each for each in dataclasses.fields(EngineCard) if each.name == field)
    usual = at.default if at.default_factory is dataclasses.MISSING else at.default_factory()
    assert EngineCard.from_json(value) == dataclasses.replace(card, **{field: usual})


@pytest.mark.parametrize("field", fields(required=True))
def test_a_missing_field_is_named(card, field):
    value = card.to_json()
    del value[field]
    with pytest.raises(InvalidModel, match=field):
        EngineCard.from_json(value)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("max_batch", "1"), ("inputs", {}), ("labels", [1]), ("files", []), ("created", "today")],
)
def test_a_field_of_another_type_is_named(card, field, wrong):
    with pytest.raises(InvalidModel, match=field):
        EngineCard.from_json(card.to_json() | {field: wrong})


def test_a_newer_format_says_so(card):
    with pytest.raises(InvalidModel, match="format 2"):
        EngineCard.from_json(card.to_json() | {"format": 2})


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_card_is_refused(tmp_path, data):
    (tmp_path / "card.json").write_bytes(data)
    with pytest.raises(InvalidModel, match=r"card\.json"):
        EngineCard.read(tmp_path / "card.json")


def test_an_absent_card_is_not_found(tmp_path):
    with pytest.raises(NotFound):
        EngineCard.read(tmp_path / "card.json")


def test_a_guess_of_the_preprocessing_is_said(card):
    assert dataclasses.replace(card, preprocess_from="by the family embedding").guess is None
    guessed = dataclasses.replace(card, preprocess_from="a guess: most take RGB")
    assert guessed.guess.startswith("UNVERIFIED: the preprocessing is a guess")
    assert "--preprocess" in guessed.guess
