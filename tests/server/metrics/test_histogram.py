"""The number of request histograms is bounded, whatever models clients name."""

from fovea_server.observability import histogram
from fovea_server.observability.histogram import Durations, render


class Everything:
    def __contains__(self, name: object) -> bool:
        return True


def test_models_that_come_and_go_leave_no_endless_histograms(monkeypatch):
    monkeypatch.setattr(histogram, "_MAX_HISTOGRAMS", 10)
    measured = Durations(Everything())
    for number in range(100):
        measured.observe(f"model-{number}", 200, 0.1)
    text = render([measured.family()])
    assert [f'model="model-{number}"' in text for number in range(100)] == [False] * 90 + [
        True
    ] * 10


def test_refusals_are_not_among_the_durations_of_a_model():
    measured = Durations({"m"})
    for status in (200, 429, 503, "OK", "UNAVAILABLE"):
        measured.observe("m", status, 0.1)
    assert measured.of("m")["+Inf"] == 2


def test_success_begins_with_zero_for_models_that_are_served():
    measured = Durations({"m", "idle"})
    measured.observe("m", 200, 0.1)
    text = render([measured.family(["m", "idle"])])
    for model, status, count in (("m", "200", 1), ("m", "OK", 0), ("idle", "200", 0)):
        assert f'_count{{model="{model}",status="{status}"}} {count}\n' in text
    assert 'status="500"' not in text
