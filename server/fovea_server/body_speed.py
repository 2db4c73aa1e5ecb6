"""The least speed of a body that arrives, over HTTP and as a message of gRPC."""

from fovea_preprocess.errors import BodyTimeout

# Bytes a second of a body that may take longer than its time limit. Poor lines of phones have more.
SLOWEST = 8192


def too_slow(timeout_s: float, what: str = "body") -> BodyTimeout:
    """Make the error for a body that is not there after `timeout_s`, and slower than `SLOWEST`."""
    return BodyTimeout(
        f"the {what} did not arrive within {timeout_s:g} s, nor with {SLOWEST // 1024} KiB/s: send "
        "less, or raise the server's --body-timeout-s"
    )
