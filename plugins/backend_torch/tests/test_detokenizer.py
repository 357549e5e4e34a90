"""Text that arrives token by token is the text of all tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from aurora_backend_torch.detokenizer import Detokenizer
from aurora_backend_torch.tokenizer import PromptError, TargetTokenizer
from aurora_core.testing.tiny_target import make_tiny_target

_PIECES = ["\u2581the", "\u2581cat", "s", "\u2581", "a", "\u00e9"]


def _byte_level() -> Tokenizer:
    """GPT-2's way: a token is some bytes, and a character may take several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def _metaspace() -> Tokenizer:
    """SentencePiece's way: spaces belong to words, unknown characters become byte tokens."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *_PIECES]
    model = models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


TOKENIZERS = {"byte_level": _byte_level(), "metaspace": _metaspace()}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_steps_add_up_to_the_whole(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    # Byte tokens at random are left out of `metaspace`: its decoder makes all of a run of them
    # unreadable when one is, in hindsight.
    first = tokenizer.token_to_id(_PIECES[0]) if kind == "metaspace" else 0
    ids = st.lists(st.integers(first, tokenizer.get_vocab_size() - 1), max_size=24)
    text = data.draw(st.text(max_size=12))
    token_ids = tokenizer.encode(text).ids + data.draw(ids)
    prompt = tokenizer.encode("the cat").ids
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=True)
    pieces = [detokenizer.step(token_id) for token_id in token_ids]
    got = "".join(pieces) + detokenizer.finish()
    before = tokenizer.decode(prompt)
    assert before + got == tokenizer.decode(prompt + token_ids)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_no_piece_holds_half_a_character(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    detokenizer = Detokenizer(tokenizer, [], skip_special_tokens=True)
    text = "\u20ac \U0001f642 \u65e5"
    pieces = [detokenizer.step(token_id) for token_id in tokenizer.encode(text).ids]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_first_token_keeps_its_space_after_a_prompt() -> None:
    tokenizer = TOKENIZERS["metaspace"]
    [cat] = tokenizer.encode(" cat").ids
    prompt = tokenizer.encode("the").ids
    assert Detokenizer(tokenizer, prompt, skip_special_tokens=True).step(cat) == " cat"


def test_prompt_may_end_within_a_character() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    euro = tokenizer.encode("\u20ac").ids
    completed = Detokenizer(tokenizer, euro[:2], skip_special_tokens=True)
    assert completed.step(euro[2]) + completed.finish() == "\u20ac"
    broken = Detokenizer(tokenizer, euro[:2], skip_special_tokens=True)
    pieces = [broken.step(token_id) for token_id in tokenizer.encode("ab").ids]
    assert "".join(pieces).removeprefix("\ufffd") == "ab"


@pytest.mark.parametrize(
    ("kind", "piece", "text", "raw"),
    [
        ("byte_level", "A", "A", b"A"),
        ("byte_level", "\u0120", " ", b" "),
        ("byte_level", "\u00e2", "bytes:\\xe2", b"\xe2"),
        ("byte_level", "<end>", "<end>", b"<end>"),
        ("metaspace", "\u2581cat", " cat", b" cat"),
        ("metaspace", "<0xE2>", "bytes:\\xe2", b"\xe2"),
        ("metaspace", "\u00e9", "\u00e9", b"\xc3\xa9"),
    ],
)
def test_single_token_shows_its_text_and_bytes(
    kind: str, piece: str, text: str, raw: bytes
) -> None:
    fast = TOKENIZERS[kind]
    wrapped = TargetTokenizer(PreTrainedTokenizerFast(tokenizer_object=fast), frozenset())
    assert wrapped.token_text(fast.token_to_id(piece)) == (text, raw)


def test_token_beyond_the_vocabulary_has_no_text(tokenizer: TargetTokenizer) -> None:
    assert tokenizer.token_text(319) == ("", b"")


def test_target_without_a_chat_template_refuses_messages() -> None:
    fast = PreTrainedTokenizerFast(tokenizer_object=TOKENIZERS["byte_level"])
    wrapped = TargetTokenizer(fast, frozenset())
    with pytest.raises(PromptError, match="no chat template; use /v1/completions"):
        wrapped.encode_chat([{"role": "user", "content": "x"}], {})


def test_template_that_refuses_a_conversation_says_so() -> None:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZERS["byte_level"],
        chat_template="{{ raise_exception('roles must alternate') }}",
    )
    wrapped = TargetTokenizer(fast, frozenset())
    with pytest.raises(PromptError, match="refuses the messages: roles must alternate"):
        wrapped.encode_chat([{"role": "user", "content": "x"}], {})


def test_end_tokens_come_from_every_file_that_names_some(tmp_path: object) -> None:
    directory = make_tiny_target(str(tmp_path), num_layers=1)
    (directory / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert TargetTokenizer.read(directory).eos_token_ids == {2, 7}
