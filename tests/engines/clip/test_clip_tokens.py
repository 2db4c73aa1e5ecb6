"""CLIP's tokens are those of open_clip, to the last padding."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.engines.clip_tokens import texts, tokenizer

from fovea_engines.clip.texts import Tokens
from fovea_engines.session import TensorSpec

pytestmark = pytest.mark.real

PACKAGES = Path(sys.prefix) / "vision" / "site-packages"
LENGTH = 77
IDS = TensorSpec("input_ids", "int64", (-1, LENGTH))


@pytest.fixture
def open_clip(monkeypatch):
    """Its tokenizer alone, which is plain Python: torch only holds what it answers."""
    if not (PACKAGES / "open_clip").is_dir():
        pytest.skip(f"open_clip is absent: `make foreign` installs it into {PACKAGES}")
    package = ModuleType("open_clip")
    package.__path__ = [str(PACKAGES / "open_clip")]
    monkeypatch.syspath_prepend(PACKAGES)
    monkeypatch.setitem(sys.modules, "open_clip", package)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    sys.modules["torch"].LongTensor = sys.modules["torch"].Tensor = object
    return importlib.import_module("open_clip.tokenizer").SimpleTokenizer()


def test_a_thousand_texts_have_the_tokens_of_open_clip(open_clip, tmp_path):
    vocabulary = PACKAGES / "open_clip" / "bpe_simple_vocab_16e6.txt.gz"
    tokens = Tokens(tokenizer(vocabulary, tmp_path / "tokenizer.json"), LENGTH)
    some = texts()
    found = tokens.feeds(some, [IDS])["input_ids"]
    wanted = np.zeros_like(found)
    begin, end = open_clip.sot_token_id, open_clip.eot_token_id
    for row, text in zip(wanted, some, strict=True):
        read = [begin, *open_clip.encode(text)[: LENGTH - 2], end]
        row[: len(read)] = read
    assert len({row.tobytes() for row in wanted}) > 900
    np.testing.assert_array_equal(found, wanted)
