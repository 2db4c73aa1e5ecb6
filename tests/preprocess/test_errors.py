"""The codes of errors are part of the API: renaming a class must not change one."""

from collections.abc import Iterator

from fovea_preprocess.errors import FoveaError

CODES = """
already_exists answer_too_large backend_error backend_unavailable body_timeout body_too_large
build_failed
deadline_exceeded device_lost disagreement error fetch_refused forbidden foreign_request
image_too_large
inference_failed invalid_image invalid_model invalid_option invalid_request invalid_result
keys_pending load_failed
malformed_json method_not_allowed model_not_ready no_memory not_finite not_found out_of_memory
out_of_order
queue_full rate_limited region_failed restricted shutting_down unauthenticated unavailable
unsupported unsupported_model
upgrade_required
"""


def test_codes_are_stable() -> None:
    assert sorted({error.code for error in _all(FoveaError)}) == CODES.split()


def _all(error: type[FoveaError]) -> Iterator[type[FoveaError]]:
    yield error
    for one in error.__subclasses__():
        yield from _all(one)
