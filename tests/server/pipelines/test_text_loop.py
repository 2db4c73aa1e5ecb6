"""The loop that reads pages by hand, against RapidOCR itself: the same texts, line by line."""

import pytest
from tests.rapidocr import VISION, reader
from tests.server.pipelines import pages
from tests.server.pipelines.text_loop import TURNED_SCORE, read_page

FOLDER = VISION / "rapidocr" / "models"
MODELS = {
    "find": FOLDER / "PP-OCRv6_det_small.onnx",
    "turn": FOLDER / "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "read": FOLDER / "PP-OCRv6_rec_small.onnx",
}
# Of the drawn ones: turned by four degrees, light on dark, upside down.
SEEN = (2, 3, 4)
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not MODELS["read"].exists(), reason=f"{FOLDER} is absent: `make test-real` installs it"
    ),
]


def test_pages_are_read_as_rapidocr_reads_them(monkeypatch):
    program, turned = reader(monkeypatch), 0
    for number in SEEN:
        page = pages.drawn(number)
        lines = read_page(MODELS, page)
        assert [line.text for line in lines] == list(program(page).txts)
        assert len(lines) >= 5
        turned += sum(line.turned > TURNED_SCORE for line in lines)
    assert turned >= 5
