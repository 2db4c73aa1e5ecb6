"""How ranges and weights become steps: nothing is clipped, zero is exact, scales fit float16."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fovea_engines.backends.backend import Encoding
from fovea_engines.quantization.qdq import Steps, encode_weight

pytestmark = pytest.mark.slow

LARGEST = 65504.0
FINEST = 2.0**-20

encodings = st.sampled_from(Encoding)
# The largest range whose scale fits float16 is 127 times as far.
ends = st.floats(0, 127 * LARGEST, allow_subnormal=False)
shares = st.lists(st.floats(0, 1), min_size=1, max_size=20)


def there_and_back(values: np.ndarray, steps: Steps) -> np.ndarray:
    """What QuantizeLinear and DequantizeLinear make of values, in double precision."""
    scale, zero = float(steps.scale), int(steps.zero_point)
    limits = np.iinfo(steps.zero_point.dtype)
    return (np.clip(np.rint(values / scale) + zero, limits.min, limits.max) - zero) * scale


def wanted(low: float, high: float, encoding: Encoding) -> float:
    """The scale that just covers a range."""
    return max(-low, high) / 127 if encoding is Encoding.SIGNED else (high - low) / 255


@given(ends, ends, shares, encodings)
def test_no_value_of_the_range_moves_by_more_than_half_a_step(low, high, shares, encoding):
    steps = Steps.of(-low, high, encoding)
    values = np.array([-low, 0.0, high, *(-low + share * (low + high) for share in shares)])
    moved = np.abs(there_and_back(values, steps) - values)
    assert (moved <= float(steps.scale) * (0.5 + 1e-4)).all()
    assert moved[1] == 0


@given(ends, ends, encodings)
def test_a_scale_is_exact_in_float16_and_hardly_larger_than_it_need_be(low, high, encoding):
    scale, least = Steps.of(-low, high, encoding).scale, wanted(-low, high, encoding)
    assert (scale.dtype, scale.shape) == (np.float32, ())
    assert np.float32(np.float16(scale)) == scale
    # A 1,024th apart, as float16 is; near zero, where it has fewer digits, a sixteenth.
    waste = 2**-10 if least >= 2**-14 else 2**-4
    assert least * (1 - 1e-6) <= scale <= max(least * (1 + waste), FINEST)


@given(ends, ends)
def test_the_two_encodings_have_the_zero_points_of_their_runtimes(low, high):
    signed, unsigned = (Steps.of(-low, high, encoding).zero_point for encoding in Encoding)
    assert (signed.dtype, signed) == (np.int8, 0)
    assert unsigned.dtype == np.uint8
    assert unsigned == 0 or low > 0


@pytest.mark.parametrize("encoding", Encoding)
def test_a_tensor_that_is_always_zero_has_a_scale(encoding):
    steps = Steps.of(0.0, 0.0, encoding)
    assert steps.scale == FINEST
    assert steps.zero_point == 0


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("high", [127 * 65505.0, 1e9, 3e38])
def test_a_range_beyond_float16_is_not_infinite(encoding, high):
    steps = Steps.of(0.0, high, encoding)
    assert np.isfinite(steps.scale)
    assert there_and_back(np.array(high), steps) == pytest.approx(high, rel=2**-10)


@given(
    st.lists(st.integers(-30, 20), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([7, 8]),
)
def test_weights_are_symmetric_a_channel(exponents, seed, bits):
    random = np.random.default_rng(seed)
    sizes = 2.0 ** np.array(exponents)
    weight = (random.normal(size=(len(sizes), 4, 3, 3)) * sizes[:, None, None, None]).astype("f4")
    weight[random.random(len(sizes)) < 0.2] = 0.0
    # Of 7 bits, the sum of the two largest decides, so that a channel has 63 steps at least.
    least = 63 if bits == 7 else 127
    integers, scale = encode_weight(weight, bits)
    assert (integers.dtype, integers.shape) == (np.int8, weight.shape)
    assert (scale.dtype, scale.shape) == (np.float32, sizes.shape)
    assert (np.float16(scale) == scale).all()
    assert np.abs(integers.astype(int)).max(initial=0) <= 127
    each = scale[:, None, None, None]
    assert (np.abs(integers * each - weight) <= each * (0.5 + 1e-4)).all()
    top = np.abs(integers.astype(int)).max(axis=(1, 2, 3))
    largest = np.abs(weight).max(axis=(1, 2, 3))
    # No channel gives away more than a sixteenth of the integers.
    assert (top[largest >= 127 * FINEST] >= least * 15 // 16).all()
    assert (top[largest == 0] == 0).all()


def test_weights_beyond_float16_are_not_infinite():
    integers, scale = encode_weight(np.array([[[[1e38]]], [[[1.0]]]], np.float32))
    assert np.isfinite(scale).all()
    assert integers.ravel().tolist() == [127, 127]
