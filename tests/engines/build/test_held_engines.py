"""Engines of a build with auto: no more are open at a time than memory allows."""

import pytest
from tests.engines.build.test_choose import kept, plan_of
from tests.engines.cpus import pretend_bfloat16

from fovea_engines.build.assemble import HeldEngines
from fovea_engines.build.build import build
from fovea_engines.engine import Engine

pytestmark = pytest.mark.slow


def test_of_large_engines_two_are_open_at_a_time(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("fovea_engines.build.assemble._MAX_BYTES", 0)
    pretend_bfloat16(monkeypatch)
    opened = []

    class Counted(HeldEngines):
        def engine(self, folder, card):
            known, engine = folder in self._open, super().engine(folder, card)
            opened.append((known, len(self._open)))
            return engine

    monkeypatch.setattr("fovea_engines.build.choose.HeldEngines", Counted)
    card = build(plan_of(tiny_model, tmp_path, precision="auto"))
    kept(card)
    assert sum(one.images_per_s is not None for one in card.candidates) == 3
    assert max(count for _, count in opened) == 2
    # One to time, one to verify, and the one that is kept: none in every round.
    assert 0 < sum(not known for known, _ in opened) <= 7
    with Engine.open(tmp_path / "r" / "m" / "1") as engine:
        assert engine.card == card
