"""HEAD has every code of an error, with its statuses in /v1, /v2 and gRPC."""

from tests.upgrade.recorded import load
from tests.upgrade.surface import differences, error_table, unintended

INTENDED: dict[str, str] = {
    "unsupported: v1": "it answers WebSockets alone, for want of the package, and always with 501",
}
"""Intended changes: the beginning of the line that the test prints, and the reason."""


def test_codes_and_statuses() -> None:
    found = unintended(differences(load("errors.json"), error_table()), INTENDED)
    assert not found, found


def test_requests_provoke_most_that_a_client_can_cause() -> None:
    """The table above says what HEAD would answer; these it did answer."""
    codes = set()
    for answer in load("answers.json").values():
        error = answer["body"].get("error") if isinstance(answer["body"], dict) else None
        if isinstance(error, dict):
            codes.add(error["code"])
    assert len(codes) >= 13
