"""Text becomes tokens and the same text again, with libraries that never touch the network."""

import base64
import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from longctx.data.tokenizers import Bytes, HuggingFace, Tiktoken, Tokenizer
from longctx.data.vocabulary import Vocabulary, vocabulary_hash
from longctx.variants import parse, spell

WORDS = r"\p{L}+|\P{L}+"
CORPUS = ["der Tag und die Nacht", "die Nacht und der Tag", "Nacht für Nacht"] * 5


def train_bpe(path, size: int = 300) -> str:
    """Save a byte-level BPE with a special token and return its file."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<eos>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(path))
    return str(path)


def write_ranks(path, merges=(b"ch", b"Na", b"Nach", b"Nacht")) -> str:
    """Write a rank file of all bytes and some merges and return it."""
    tokens = [*(bytes([b]) for b in range(256)), *merges]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module", params=["bytes", "hugging_face", "tiktoken"])
def tokenizer(request, folder):
    if request.param == "bytes":
        return Bytes()
    if request.param == "hugging_face":
        return HuggingFace(train_bpe(folder / "tokenizer.json"))
    return Tiktoken(write_ranks(folder / "r.tiktoken"), WORDS, (("<eos>", 270),))


@given(text=st.text() | st.sampled_from(CORPUS))
def test_every_text_comes_back(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int32
    assert ((tokens > 0) & (tokens < len(tokenizer.names))).all()
    assert tokenizer.decode(tokens) == text


@given(data=st.data())
def test_any_tokens_spell_something(tokenizer, data):
    tokens = data.draw(st.lists(st.integers(1, len(tokenizer.names) - 1)))
    tokens = [t for t in tokens if not tokenizer.names[t].startswith("unused")]
    assert isinstance(tokenizer.decode(np.array(tokens, np.int32)), str)


def test_decoding_stops_at_the_boundary_after_the_start(tokenizer):
    night, day = tokenizer.encode("Nacht"), tokenizer.encode("Tag")
    assert tokenizer.decode(np.concatenate([[0], night, [0], day])) == "Nacht"
    assert tokenizer.decode(np.concatenate([night, [0, 0], day])) == "Nacht"
    assert tokenizer.decode(np.array([0])) == tokenizer.decode(np.array([], np.int32)) == ""


def test_tokenizers_keep_the_vocabulary_protocol(tokenizer):
    assert isinstance(tokenizer, Vocabulary)
    assert (tokenizer.boundary, tokenizer.stride) == (0, 1)
    assert tokenizer.names[0].startswith("boundary")
    assert parse(spell(tokenizer), Tokenizer) == tokenizer


def test_tokens_outside_the_vocabulary_are_refused(tokenizer):
    size = len(tokenizer.names)
    for wrong in (-1, size):
        with pytest.raises(ValueError, match=f"token {wrong} at place 1 is outside .* of {size}"):
            tokenizer.decode(np.array([1, wrong]))


def test_half_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"character 2 is '\\ud800', half of a surrogate pair"):
        tokenizer.encode("ab\ud800")


def test_bytes_are_named_and_broken_ones_replaced():
    names = Bytes().names
    assert len(names) == len(set(names)) == 257
    assert (names[0], names[1 + 65], names[1 + 0xC3]) == ("boundary", "'A'", "byte 195")
    np.testing.assert_array_equal(Bytes().encode("Aé"), [66, 0xC3 + 1, 0xA9 + 1])
    assert Bytes().decode(np.array([66, 0xC3 + 1, 66])) == "A\ufffdA"


def test_learned_words_are_single_tokens(folder):
    ranks = Tiktoken(write_ranks(folder / "words.tiktoken"), WORDS)
    np.testing.assert_array_equal(ranks.encode("Nacht"), [259 + 1])
    assert ranks.names[260] == "'Nacht'"
    trained = HuggingFace(train_bpe(folder / "words.json"))
    (token,) = trained.encode("Nacht")
    assert trained.names[token] == "Nacht"


def test_ids_are_those_of_the_library_plus_one(folder):
    file = train_bpe(folder / "ids.json")
    ids = tokenizers.Tokenizer.from_file(file).encode("Tag und Nacht").ids
    np.testing.assert_array_equal(HuggingFace(file).encode("Tag und Nacht"), np.array(ids) + 1)


def test_special_names_in_a_text_forge_no_special_token_of_tiktoken(folder):
    file = write_ranks(folder / "special.tiktoken")
    tokenizer = Tiktoken(file, WORDS, (("<eos>", 270),))
    assert tokenizer.names[265] == "unused 264"
    assert tokenizer.names[271] == "<eos>"
    assert 271 not in tokenizer.encode("<eos>")
    assert tokenizer.decode(np.array([271])) == "<eos>"


def test_another_content_is_another_vocabulary(folder):
    hashes = [
        vocabulary_hash(HuggingFace(train_bpe(folder / "tokenizer.json", size)))
        for size in (260, 265)
    ]
    file = folder / "changed.tiktoken"
    for merges in ([b"ab"], [b"ba"]):
        hashes.append(vocabulary_hash(Tiktoken(write_ranks(file, merges), WORDS)))
    hashes.append(vocabulary_hash(Tiktoken(str(file), ".|\n")))
    assert len(set(hashes)) == 5
    assert vocabulary_hash(Bytes()) == vocabulary_hash(Bytes())


def test_a_normaliser_alone_makes_another_vocabulary(folder):
    file = folder / "normalised.json"
    train_bpe(file)
    before = vocabulary_hash(HuggingFace(str(file)))
    library = tokenizers.Tokenizer.from_file(str(file))
    library.normalizer = tokenizers.normalizers.Lowercase()
    library.save(str(file))
    assert vocabulary_hash(HuggingFace(str(file))) != before


@pytest.mark.parametrize("make", [HuggingFace, lambda file: Tiktoken(file, WORDS)])
def test_a_missing_file_is_named(make, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no tokenizer file .*missing\.x; give"):
        make(str(tmp_path / "missing.x")).encode("a")


def test_a_file_of_something_else_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"file is no tokenizer\.json"):
        HuggingFace(str(file)).encode("a")
    with pytest.raises(ValueError, match=r"file:1 is b'\{\"a\": 1\}'; wanted a base64 token"):
        Tiktoken(str(file), WORDS).encode("a")


def test_ranks_without_a_byte_are_refused(tmp_path):
    file = tmp_path / "few.tiktoken"
    file.write_text("YQ== 0\n")
    with pytest.raises(ValueError, match="has no rank for byte 0 and 254 others"):
        Tiktoken(str(file), WORDS).encode("a")


def test_a_pattern_that_loses_characters_is_refused(tmp_path):
    tokenizer = Tiktoken(write_ranks(tmp_path / "r.tiktoken"), r"\p{L}+")
    with pytest.raises(ValueError, match="leaves out characters of 'Tag und Nacht'"):
        tokenizer.encode("Tag und Nacht")


@pytest.mark.parametrize(
    ("library", "tokenizer"), [("tokenizers", "HuggingFace"), ("tiktoken", "Tiktoken")]
)
def test_a_library_that_is_not_installed_is_asked_for(library, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    file = write_ranks(tmp_path / "r.tiktoken")
    made = HuggingFace(file) if tokenizer == "HuggingFace" else Tiktoken(file, WORDS)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {library}.*longctx-music\[text\]"):
        made.encode("a")
