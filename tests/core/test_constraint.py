"""Allowed ids against their definition, tried out over every text that may be written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hpd_core.constraint import CopyConstraint
from hpd_core.grounding import Edge, SourceText
from hpd_core.normal import INVISIBLE, is_one_line
from hpd_core.reading import ValueStatus, read
from hpd_core.schema import Attribute
from hpd_core.vocabulary import Vocabulary, VocabularyError

#: Ids 0..255 write a byte each, then come words, halves of characters and glued blanks; the last three end a value.
PIECES = [b"red", b" red", b" Red", b"re", b"d b", b"\xc3\xbcn", b"; ", b";re", b" n", b"/a", b"1", b"15", b"  "]
TEXTS = [*(bytes([b]) for b in range(256)), *PIECES, b"\n", b"d\n\n", b"<end>", None]
NEWLINE, D_NEWLINE, EOS, NOBODY = range(len(TEXTS) - 4, len(TEXTS))
TEXTS[EOS] = None
STOPS = frozenset({10, NEWLINE, D_NEWLINE, EOS})
VOCABULARY = Vocabulary.of(TEXTS, STOPS)


def words(text: str, many: bool) -> set[str]:
    source = SourceText(text)
    starts = [i for i, c in enumerate(text) if source.edge(i) is Edge.WORD and not c.isspace() and c not in INVISIBLE]
    ends = [j for j in range(1, len(text) + 1) if source.edge(j) is Edge.WORD and not text[j - 1].isspace()]
    found = {text[i:j] for i in starts for j in ends if i < j and is_one_line(text[i:j])}
    return {w for w in found if ";" not in w} if many else found


def everything(text: str, absent: str, many: bool) -> set[bytes]:
    """All that may be written, of at most three values where there may be several."""
    one = values = words(text, many)
    for _ in range(2 * many):
        values = one | {f"{a};{blank}{b}" for a in values for b in one for blank in ("", " ")}
    return {f"{blank}{value}".encode() for value in {*values, absent} for blank in ("", " ")}


def expected(text: str, absent: str, many: bool, written: bytes) -> set[int]:
    whole = everything(text, absent, many)
    begun = {w[:n] for w in whole for n in range(len(w) + 1)}
    ends = {NEWLINE: b"", 10: b"", D_NEWLINE: b"d", EOS: b""}
    allowed = {i for i, head in ends.items() if written + head in whole}
    return allowed | {i for i, t in enumerate(TEXTS) if t and i not in STOPS and written + t in begun}


SIGNS = "red bü;\n\r\u2028\x851,5-n/aü \u00ad革"


@given(st.text(st.sampled_from(SIGNS), max_size=9), st.sampled_from(["n/a", ""]), st.booleans(), st.data())
def test_allowed_ids_are_those_that_can_still_become_a_copy(text, absent, many, data):
    text = text[:3] if many else text
    constraint = CopyConstraint(VOCABULARY, SourceText(text), absent=absent, many=many)
    ids: list[int] = []
    while len(VOCABULARY.write(ids)) < 5:  # longer ones may be of four values, which `everything` leaves out
        assert set(constraint(ids)) == expected(text, absent, many, VOCABULARY.write(ids))
        assert list(constraint(ids)) == sorted(set(constraint(ids)))
        going_on = [i for i in constraint(ids) if i not in STOPS]
        if not going_on:
            break
        ids.append(data.draw(st.sampled_from(going_on)))


@given(st.text(st.sampled_from(SIGNS), max_size=12), st.booleans(), st.randoms(use_true_random=False))
def test_whatever_is_written_within_the_bounds_is_found_or_absent(text, many, rng):
    constraint, source = CopyConstraint(VOCABULARY, SourceText(text), absent="n/a", many=many), SourceText(text)
    ids: list[int] = []
    while not ids or ids[-1] not in STOPS:
        ids.append(rng.choice(constraint(ids)))
        if len(ids) > 60:
            return
    raw = VOCABULARY.write(ids).decode().removeprefix(" ")
    assert read(Attribute("A", many=many), raw, source).status in (ValueStatus.EXTRACTED, ValueStatus.ABSENT)


@pytest.mark.parametrize(
    "text, written, may_be",
    [
        ("Hundred red", "red", True),
        ("Hundred", "red", False),
        ("reds", "red", False),
        ("size 15", "1", False),
        ("Grün", "Gr", False),
        ("Grün", "Grün", True),
        ("light red\nblue", "light red", True),
        ("red", "", False),
        ("", "n/a", True),
        ("革靴", "靴", True),
    ],
)
def test_where_a_value_may_end(text, written, may_be):
    constraint = CopyConstraint(VOCABULARY, SourceText(text), absent="n/a")
    ids = [*f" {written}".encode(), NEWLINE]
    assert all(i in constraint(ids[:n]) for n, i in enumerate(ids)) == may_be


def test_a_value_never_crosses_a_line_and_always_can_be_absent():
    constraint = CopyConstraint(VOCABULARY, SourceText("red\nblue"), absent="")
    assert NEWLINE in constraint([]) and EOS in constraint([32])
    assert set(constraint(list(b"red"))) == {NEWLINE, 10, EOS}


def test_closed_values_are_all_that_may_be_written():
    constraint = CopyConstraint(VOCABULARY, None, values=("red", "rest"), absent="n/a", many=True)
    assert set(constraint(list(b"re"))) == {ord("d"), ord("s"), D_NEWLINE}
    assert {ord(";"), NEWLINE} <= set(constraint(list(b"red")))
    assert ord("n") not in constraint(list(b"red; ")) and ord("n") in constraint([])


def test_where_no_id_can_go_on_the_value_ends():
    """A vocabulary without bytes may lack a word's letters."""
    lacking = Vocabulary.of([b"re", b"\n"], {1})
    constraint = CopyConstraint(lacking, SourceText("red"), absent="n/a")
    assert constraint([]) == (0,) and constraint([0]) == (1,)


def byte_level() -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    more = ["Ġr", "Ġre", "Ã¼", "Ċ"]
    vocabulary = {c: n for n, c in enumerate(dict.fromkeys([*letters, *more, "<end>"]))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", "r"), ("Ġr", "e"), ("Ã", "¼")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def pieces() -> PreTrainedTokenizerFast:
    plain = ["<unk>", "<end>", "▁", "▁re", "d", "re", "b", "▁b", "s", "\n", ")\n"]
    names = [*plain, *(f"<0x{b:02X}>" for b in range(256))]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={c: n for n, c in enumerate(names)}, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>")


@pytest.mark.parametrize("make", [byte_level, pieces])
@pytest.mark.parametrize("text", ["red bs", "reds größe red b", "革靴 👍", "a  b"])
def test_what_ids_write_is_what_the_tokenizer_decodes(make, text):
    tokenizer = make()
    newlines = {i for i in range(len(tokenizer)) if "\n" in tokenizer.decode([i])}
    eos = frozenset({tokenizer.eos_token_id})
    vocabulary = Vocabulary.from_tokenizer(tokenizer, frozenset(newlines) | eos, eos)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert vocabulary.write(ids).decode().removeprefix(" ") == text == tokenizer.decode(ids).removeprefix(" ")
    constraint = CopyConstraint(vocabulary, SourceText(f"some {text} more"))
    for n, i in enumerate(ids):
        assert i in constraint(ids[:n])
    assert eos <= set(constraint(ids))
    assert tokenizer.unk_token_id is None or tokenizer.unk_token_id not in constraint([])


def test_other_tokenizers_are_refused():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(VocabularyError, match="neither byte-level nor SentencePiece-like"):
        Vocabulary.from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer), frozenset(), frozenset())
