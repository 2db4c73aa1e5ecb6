"""CLIP's tokens are those of open_clip to the last padding; the demo tells images by captions."""

import gzip
import importlib
import itertools
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.conftest import DEMO
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.clip.texts import Tokens
from fovea_engines.engine import Engine
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

pytestmark = pytest.mark.slow


BEGIN, END = "<|startoftext|>", "<|endoftext|>"
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_LINES = slice(1, 49152 - 256 - 2 + 1)
_WORDS_OF_TEXTS = """
a photo of the Red SEVEN 7 1,024 don't it's we'll dog's cat-like e-mail https://a.b/c?d=1
naïve café Zürich straße 東京 の 写真 привет мир γειά שלום سلام 안녕하세요 हिन्दी ไทย 😀 👍🏽
x² 3/4 50% $9.99 (blurry) [cropped] {x} #tag @home & <b> * _under_ ~ ` ^ | \\ ... !!! ?!
supercalifragilistic antidisestablishmentarianism zzzzqqqq KeyboardInterrupt AbCdEf
"""


def tokenizer(vocabulary: Path, path: Path) -> Path:
    """Write tokenizer.json as Hugging Face's repositories of CLIP have it.

    Args:
        vocabulary: bpe_simple_vocab_16e6.txt.gz.
        path: the file to write.
    """
    lines = gzip.decompress(vocabulary.read_bytes()).decode().split("\n")[_LINES]
    merges = [tuple(line.split()) for line in lines]
    letters = _letters()
    entries = [*letters, *(f"{each}</w>" for each in letters), *map("".join, merges), BEGIN, END]
    ids = {entry: at for at, entry in enumerate(entries)}
    made = Tokenizer(
        models.BPE(ids, merges, unk_token=END, end_of_word_suffix="</w>", fuse_unk=False)
    )
    made.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Lowercase(),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.post_processor = processors.RobertaProcessing(
        (END, ids[END]), (BEGIN, ids[BEGIN]), trim_offsets=False, add_prefix_space=False
    )
    made.save(str(path))
    return path


def _letters() -> list[str]:
    """GPT-2's letters for bytes, in the order of the vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [each for each in range(256) if each not in plain]
    return [*map(chr, plain), *(chr(256 + at) for at in range(len(others)))]


def texts(count: int = 1000) -> list[str]:
    """Captions of all kinds: plain ones, other scripts, signs, and longer than a network reads."""
    rng = np.random.default_rng(0)
    words = _WORDS_OF_TEXTS.split()
    made = ["a", " a  red\tseven \n", "...", "7", "a" * 300, " ".join(words), "don't 'll 'S"]
    pairs = itertools.product(words[:12], words)
    made += [" ".join(pair) for pair in itertools.islice(pairs, 300)]
    while len(made) < count:
        made.append(" ".join(rng.choice(words, int(rng.integers(1, 30)))))
    return made[:count]


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


@pytest.mark.real
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


def test_the_caption_of_an_image_is_the_likeliest_of_all(tmp_path):
    """Digits, photographs and captions that the demo's model was not trained on."""
    pytest.importorskip("skimage", reason="images are composed from photographs in scikit-image")
    pytest.importorskip("sklearn", reason="images are composed from digits in scikit-learn")
    from tools.demo_models.captions import HELDOUT, PAIRS, caption, compose

    captions = tuple(caption(pair) for pair in PAIRS)
    source, tokens = DEMO / "digits-embed.onnx", DEMO / "digits-embed.json"
    assert source.stat().st_size + tokens.stat().st_size < 2_000_000
    card = build(BuildPlan(source, "embed", tmp_path, "onnxruntime", tokenizer=tokens))
    # Nobody has given an option.
    assert "--" not in f"{card.reason}{card.preprocess_from}"
    options = PredictOptions(labels=captions, top_k=1)
    right = []
    with Engine.open(tmp_path / "embed" / "1") as engine:
        for seed in range(300):
            pixels, place = compose(seed, "heldout", HELDOUT)
            found = engine.predict(pixels, options)
            right.append(captions[found.class_ids[0]] == caption(HELDOUT[place]))
        assert engine.words.computed == len(captions)
    assert np.mean(right) >= 0.95
