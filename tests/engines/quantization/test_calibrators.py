"""What a histogram remembers of a tensor, against numpy and ONNX Runtime on the same values."""

import numpy as np
import pytest
from onnxruntime.quantization.calibrate import HistogramCollector

from fovea_engines.quantization.calibrators import BINS, Histogram
from fovea_preprocess.errors import BuildError

pytestmark = pytest.mark.slow

RANDOM = np.random.default_rng(0)
COUNT = 200_000
LONG_TAILED = {
    "laplace": RANDOM.laplace(0, 1, COUNT),
    "normal with outliers": np.append(RANDOM.normal(0, 1, COUNT), [40, -30]),
    "student": RANDOM.standard_t(3, COUNT),
    "lognormal": RANDOM.lognormal(0, 1, COUNT),
    "silu": (lambda x: x / (1 + np.exp(-x)))(RANDOM.normal(0, 2, COUNT)),
}


def histogram(*images) -> Histogram:
    seen = Histogram()
    for values in images:
        seen.add(np.asarray(values, np.float32))
    return seen


def onnxruntimes_entropy(values: np.ndarray) -> float:
    """Over both signs, so with twice the bins and steps that one half has here."""
    bins, steps = 2048, 256
    reach = np.abs(values).max()
    counts, edges = np.histogram(values, bins, range=(-reach, reach))
    collector = HistogramCollector("entropy", True, bins, steps, 99.99, "same")
    _, high = collector.get_entropy_threshold((counts, edges, -reach, reach), steps)
    return float(high)


@pytest.mark.parametrize("name", LONG_TAILED)
@pytest.mark.parametrize("share", [0.5, 0.9, 0.999, 0.99999])
def test_percentiles_are_numpys(name, share):
    values = LONG_TAILED[name].astype(np.float32)
    seen = histogram(*np.array_split(values, 7))
    expected = np.quantile(np.abs(values), share, method="inverted_cdf")
    # The edge above; the bins may have doubled past the largest value.
    width = 2 * np.abs(values).max() / BINS
    assert expected <= seen.percentile(share) * 1.000001
    assert seen.percentile(share) <= expected + width


def test_bins_double_until_the_largest_value_fits():
    values = np.geomspace(1e-4, 1e4, 5000)
    grown, at_once = histogram(*np.array_split(values, 50)), histogram(values)
    for share in (0.5, 0.9, 1.0):
        assert grown.percentile(share) == pytest.approx(at_once.percentile(share), abs=6)
    assert (grown.low, grown.high) == (0, np.float32(1e4))
    assert grown.percentile(1.0) == np.float32(1e4)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        (np.zeros(100), 0, 0),
        ([], 0, 0),
        (np.full(100, 5), 0, 5),
        (np.full(100, -3), -3, 0),
        (-np.linspace(1, 2, 100), -2, 0),
        (np.full(100, 1e-42), 0, 1e-42),
        (np.full(100, 3e38), 0, 3e38),
    ],
    ids=["zero", "empty", "five", "minus three", "negative", "next to nothing", "huge"],
)
def test_all_choices_hold_what_is_always_there(values, low, high):
    seen = histogram(values, values)
    assert (seen.low, seen.high) == pytest.approx((low, high))
    for bound in (seen.percentile(0.999999), seen.entropy(), seen.squared_error()):
        assert bound == pytest.approx(max(-low, high))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(BuildError):
        histogram([1.0, value, 2.0])


@pytest.mark.parametrize("name", LONG_TAILED)
def test_entropy_clips_about_where_onnxruntime_does(name):
    values = LONG_TAILED[name].astype(np.float32)
    found, other = histogram(values).entropy(), onnxruntimes_entropy(values)
    assert 0.6 < found / other < 1.6


def test_entropy_keeps_what_is_dense_to_its_end():
    assert histogram(RANDOM.uniform(-1, 1, COUNT)).entropy() == pytest.approx(1, rel=0.01)


def test_entropy_is_not_led_by_the_zeros_of_a_relu():
    """Nine of ten values are zero, as after most activations, and are held exactly anyway."""
    values = np.maximum(RANDOM.laplace(-2, 1, COUNT), 0).astype(np.float32)
    alive = values[values > 0]
    assert len(alive) < COUNT / 10
    found = histogram(values).entropy()
    assert found > np.quantile(alive, 0.99)
    # Where the zeros count, half of what is alive is clipped.
    assert onnxruntimes_entropy(values) < np.quantile(alive, 0.9)


def squared_error(values: np.ndarray, bound: float) -> float:
    """Mean squared error of values in 8 bits from -bound or their lowest to bound."""
    low, high = max(values.min(), -bound), min(values.max(), bound)
    scale = (high - low) / 255
    zero = np.rint(-low / scale)
    steps = np.clip(np.rint(values / scale) + zero, 0, 255) - zero
    return float(np.square(steps * scale - values).mean())


@pytest.mark.parametrize("name", LONG_TAILED)
def test_no_other_range_has_a_much_smaller_squared_error(name):
    values = LONG_TAILED[name].astype(np.float32)
    found = histogram(values).squared_error()
    bounds = np.abs(values).max() * np.linspace(0.02, 1, 99)
    assert squared_error(values, found) < 1.05 * min(squared_error(values, b) for b in bounds)


def test_squared_error_clips_one_outlier_and_keeps_many():
    flat = RANDOM.uniform(-1, 1, COUNT)
    assert histogram(flat).squared_error() == pytest.approx(1, rel=0.02)
    assert histogram(flat, [8.0]).squared_error() < 7
    assert histogram(flat, np.full(COUNT // 100, 8.0)).squared_error() == pytest.approx(8, rel=0.02)
