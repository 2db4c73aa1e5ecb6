"""docs/reference lists the commands and settings of this version."""

from tools.reference import pages


def test_the_reference_is_current():
    for file, text in pages().items():
        assert file.read_text() == text, f"{file.name} is old: run `python -m tools.reference`"
