"""A candidate that sees live images stands in the engine card."""

import httpx
import pytest
from tests.keyed import until

from .conftest import DEMO, choose, says

pytestmark = pytest.mark.browser


def test_the_engine_card_names_a_candidate_and_leads_to_its_report(page, page_server):
    shadow = f"{page_server.url}/v1/models/digits/shadow"
    page.click("summary:has-text('Engine card')")
    assert page.locator(".card a").count() == 0
    httpx.put(shadow, json={"version": 1, "share": 1, "images": 2}).raise_for_status()
    until(lambda: httpx.get(shadow).json()["state"] == "running")
    for scene in (1, 2):
        choose(page, DEMO / f"scene-{scene}.jpg")
    until(lambda: httpx.get(shadow).json()["state"] == "finished")
    # Each look at it asks again.
    for _ in range(4):
        page.click("summary:has-text('Engine card')")
    says(page, ".card dd a", "version 1: finished")
    assert page.locator(".card a").count() == 1
    report = page.locator(".card dd a").get_attribute("href")
    assert httpx.get(report).text.startswith("# digits: version 1 beside version 2")
