"""Tiny tokenizers of the kinds that models come with, trained on a few lines in a fraction of a second."""

from __future__ import annotations

import json
from collections.abc import Callable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "Brand: Nike\nColor: red\nShoe type: running shoe\nSize: 8.5 M US\n",
    "red shoe, blue shoe (grün)\n\nred red shoe by Acme\nBrand: n/a\nColor: dark red\n",
    "Extract these attributes from the product text, one per line as 'Name: value'.\nProduct text:\n",
] * 8
END = "<|im_end|>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Thinks unless it is told not to, and says so in a header that is empty (Qwen3, SmolLM3).
THINKING = CHATML.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
#: Thinks whatever it is told (distilled reasoning models).
ALWAYS_THINKING = CHATML.removesuffix("{% endif %}") + "<think>\n{% endif %}"
#: Lets the model choose a channel, and it thinks in another than it answers in (gpt-oss).
CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
WITH_BOS = "{{ bos_token }}" + CHATML
#: Gemma 2, Mistral 7B: no system message.
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
)
DROPS_SYSTEM = CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")


def _made(tokenizer: Tokenizer, **named: str | None) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, **named)


def byte_level(split: str | None = None, **named: str | None) -> PreTrainedTokenizerFast:
    """GPT-2's kind. split: pattern of what is never merged across, where it is not GPT-2's own."""
    tokenizer = Tokenizer(models.BPE())
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    cut = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cut, whole])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", END, "<s>", "<pad>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _made(tokenizer, **named)


#: Qwen's and Llama 3's: signs take the newlines behind them along, so that ")\n" may be one token.
SIGNS_WITH_NEWLINES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def sentence_piece(dummy_prefix: bool, adds_bos: bool) -> PreTrainedTokenizerFast:
    """Llama 2's and Gemma's kind: blanks are letters, what is not in the vocabulary is bytes. dummy_prefix: a blank is
    put before every text (Llama 2). adds_bos: of its own accord."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    blanks = [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence([*([normalizers.Prepend("▁")] if dummy_prefix else []), *blanks])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|▁?[^▁\n]+|▁+"), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<unk>", "<s>", "<|im_start|>", END, "<pad>", *(f"<0x{b:02X}>" for b in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator((line.replace("\n", "") for line in CORPUS), trainer)
    facts = json.loads(tokenizer.to_str())  # bytes are ordinary pieces, and no control tokens
    facts["added_tokens"] = [token for token in facts["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(facts))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if dummy_prefix else [])])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return _made(tokenizer, bos_token="<s>", unk_token="<unk>")


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte-level without a pad token": byte_level,
    "byte-level, pad is eos": lambda: byte_level(pad_token=END),
    "byte-level, signs take newlines along": lambda: byte_level(SIGNS_WITH_NEWLINES, pad_token="<pad>"),
    "SentencePiece that puts a blank before every text": lambda: sentence_piece(True, True),
    "SentencePiece without that blank": lambda: sentence_piece(False, True),
}
