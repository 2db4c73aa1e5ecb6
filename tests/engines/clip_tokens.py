"""CLIP's tokenizer, from the vocabulary that open_clip ships, and texts to compare it on."""

import gzip
import itertools
from pathlib import Path

import numpy as np
from tokenizers import (
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

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
