"""Long phases, told where there is no terminal."""

from fovea_engines import progress


def test_a_long_phase_is_not_silent_without_a_terminal(capsys, monkeypatch):
    def told() -> list[str]:
        shown = progress.ConsoleProgress()
        with shown.phase("sensitivity"):
            for _ in shown.each("abc", 3):
                pass
        return capsys.readouterr().err.splitlines()

    assert len(told()) == 1, "only its end, where it is short"
    monkeypatch.setattr(progress, "SILENCE_S", 0.0)
    *steps, _ = told()
    assert steps == [f"  sensitivity {done}/3" for done in (1, 2, 3)]
