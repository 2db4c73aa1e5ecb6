"""axe-core finds nothing wrong with the page: empty, answered, comparing, with an error."""

from importlib.resources import files

import pytest

from .conftest import DEMO, choose, opened, says


@pytest.fixture(scope="module")
def axe() -> str:
    package = pytest.importorskip(
        "axe_playwright_python",
        reason="axe-playwright-python is not installed: `make test` installs it",
    )
    return (files(package) / "axe.min.js").read_text()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1300), ("dark", 390)])
def test_axe_finds_nothing(browser, page_server, axe, scheme, width, tmp_path):
    (tmp_path / "notes.jpg").write_text("this is no image")

    def check(state: str) -> None:
        result = page.evaluate("axe.run()")
        found = [(each["id"], each["nodes"][0]["html"]) for each in result["violations"]]
        assert found == [], state
        assert len(result["passes"]) > 30

    with opened(browser, page_server, width=width, color_scheme=scheme) as page:
        page.evaluate(axe)
        check("empty")
        choose(page, DEMO / "scene-1.jpg", DEMO / "scene-2.jpg")
        page.click("summary:has-text('Engine card')")
        check("answered")
        page.click("#compare")
        says(page, "#summary", "Both")
        page.locator("#found .row").first.click()
        page.set_input_files("#files", tmp_path / "notes.jpg")
        page.locator("#alert").wait_for()
        check("comparing, and an error")
        # Nothing is cut off on a phone.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
