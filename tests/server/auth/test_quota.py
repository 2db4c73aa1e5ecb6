"""Quotas count images in periods of the calendar, are shared by servers, and survive them."""

import json
import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.auth.test_key_authenticator import admit

from fovea_preprocess.errors import RateLimited
from fovea_server.auth.bucket import LimitedPrincipal
from fovea_server.auth.key import digest_of, new_token
from fovea_server.auth.key_authenticator import KeyAuthenticator
from fovea_server.auth.quota import Meter, Quota, UsageFile

NOON = datetime(2026, 11, 26, 12, 30, tzinfo=UTC)


class Clock:
    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def test_what_is_over_the_quota_waits_for_the_next_period():
    clock = Clock()
    meter = Meter(Quota.parse("10/day"), clock)
    meter.take(8)
    with pytest.raises(RateLimited, match="2 of 10") as no:
        meter.take(3)
    assert no.value.retry_after_s == 11.5 * 3600
    meter.take(2)
    assert meter.left == 0
    clock.now += timedelta(seconds=no.value.retry_after_s)
    assert meter.left == 10
    meter.take(3)


@given(
    st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    st.sampled_from(["hour", "day", "month"]),
)
def test_periods_follow_each_other(now, unit):
    quota = Quota(1, unit)
    begin, end = quota.begin(now), quota.end(now)
    assert begin <= now < end
    assert quota.begin(end) == end
    assert quota.begin(end - timedelta(microseconds=1)) == begin


@pytest.mark.parametrize(
    "text", ["", "5", "5/s", "0/day", "0.5/day", "-1/day", "1.2.3/day", "x/day"]
)
def test_quotas_that_are_none(text):
    with pytest.raises(ValueError, match="1e6/day"):
        Quota.parse(text)


def test_quotas():
    assert Quota.parse("1e6/day") == (1_000_000, "day")
    assert Quota.parse("2.5e3/month") == (2500, "month")


def test_servers_of_one_file_share_a_quota(tmp_path):
    clock, quota = Clock(), Quota.parse("100/day")
    meters = [Meter(quota, clock) for _ in range(3)]
    files = [UsageFile(tmp_path / "used") for _ in meters]
    for _ in range(3):
        for meter, file in zip(meters, files, strict=True):
            meter.take(5)
            file.share([("cam", meter)])
    for meter, file in zip(meters, files, strict=True):
        file.share([("cam", meter)])
        assert meter.left == 100 - 9 * 5
    # Another period begins with nothing, and the one before is not kept.
    clock.now += timedelta(days=1)
    meters[0].take(1)
    for meter, file in zip(meters, files, strict=True):
        assert meter.left >= 99
        file.share([("cam", meter)])
        assert meter.left == 99


def test_what_was_used_is_known_after_a_restart(tmp_path):
    meter = Meter(Quota.parse("100/day"), Clock())
    meter.take(40)
    UsageFile(tmp_path / "used").share([("cam", meter), ("other", Meter(Quota(1, "day"), Clock()))])
    again = Meter(Quota.parse("100/day"), Clock())
    UsageFile(tmp_path / "used").share([("cam", again)])
    assert again.left == 60
    renamed = Meter(Quota.parse("100/day"), Clock())
    UsageFile(tmp_path / "used").share([("cam-2", renamed)])
    assert renamed.left == 100


def test_where_nothing_can_be_written_a_server_counts_alone_and_says_so_once(tmp_path, caplog):
    file = UsageFile(tmp_path / "nowhere" / "used")
    meter = Meter(Quota.parse("10/day"), Clock())
    for _ in range(3):
        meter.take(2)
        file.share([("cam", meter)])
    assert meter.left == 4
    [said] = caplog.messages
    assert "--quota-file" in said


def test_a_file_that_is_no_database_changes_nothing(tmp_path, caplog):
    (tmp_path / "used").write_text("no database " * 100)
    meter = Meter(Quota.parse("10/day"), Clock())
    meter.take(2)
    UsageFile(tmp_path / "used").share([("cam", meter)])
    assert meter.left == 8
    assert "not a database" in caplog.text


def write(file: Path, token: str, **more: object) -> None:
    entry = {"name": "cam", "secrets": [{"sha256": digest_of(token)}], "scopes": ["predict"]}
    entry |= {"created": NOON.isoformat(), "quota": "10/month", **more}
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"keys": [entry]}))
    new.replace(file)


def left(principal: LimitedPrincipal) -> int:
    assert principal.meter is not None
    return principal.meter.left


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_door_writes_what_is_used_and_another_reads_it(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    file, token = tmp_path / "keys.json", new_token()
    write(file, token)
    first, second = KeyAuthenticator(file), KeyAuthenticator(file)
    try:
        admit(first, token, "predict").charge(3)
        until(lambda: left(admit(second, token, "predict")) == 7)
        # A change of something else begins no new quota.
        write(file, token, models=["cam-*"])
        until(lambda: admit(second, token, None).models)
        assert left(admit(second, token, None)) == 7
        admit(second, token, None).charge(4)
    finally:
        second.close()
        first.close()
    third = KeyAuthenticator(file, usage=tmp_path / "keys.json.used")
    third.close()
    assert left(admit(third, token, None)) == 3
    with pytest.raises(RateLimited, match="3 of 10"):
        admit(third, token, None).charge(4)
