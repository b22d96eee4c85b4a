"""Template -> token ids: the shared prefix, the document, one stub per attribute. Built once, handed to every decoder.

Ids of a document never depend on its neighbours, and its text is encoded so that the template's control markers inside
it stay plain text. Stubs and values are cut out of in-context text, see `lines.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hpd_core import layout as layouts
from hpd_core import recipe, source
from hpd_core.constraint import Allowed, constraints
from hpd_core.lines import LineEncoder
from hpd_core.lines import PromptError as PromptError  # who builds prompts catches it
from hpd_core.model_spec import Prompting
from hpd_core.normal import is_one_line
from hpd_core.schema import SEPARATOR, Attribute, Document, Schema
from hpd_core.settings import ClosedValues, DecodeSettings, Grounding, Layout
from hpd_core.spec import DecoderSpec
from hpd_core.template import PromptTemplate, Stub
from hpd_core.trie import LongValue, TokenTrie, long_values, value_trie
from hpd_core.untrusted import UntrustedText
from hpd_core.vocabulary import Vocabulary

_DOCUMENT = "[[[the-document-goes-here]]]"
_THINK, _THOUGHT = "<think>", "</think>"
#: gpt-oss (Harmony): a turn of the assistant's, in which the model would choose a channel to think in; the answer's.
_TURN, _CHANNEL, _FINAL = "<|start|>assistant", "<|channel|>", "<|channel|>final<|message|>"


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """Token ids of a document's text (without template), cut to the budget.

    text: the characters that the ids stand for, as the document writes them; empty where grounding is off.
    """

    ids: Sequence[int]
    schema: Schema
    cut: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class SchemaPrompt:
    """What all documents of a schema share: prefix [P], suffix [X] and one stub per attribute."""

    schema: Schema
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    stubs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One document's prompt. `document` [D] includes the suffix (turn end and assistant header).

    allowed: what each slot may write, one or None per attribute; empty where nothing is constrained.
    """

    shared: SchemaPrompt
    document: tuple[int, ...]
    max_value_tokens: int
    allowed: tuple[Allowed | None, ...] = ()
    document_block: int = 1

    @property
    def memory_ids(self) -> tuple[int, ...]:
        """[D + S] ids in memory order behind the prefix."""
        return self.document + tuple(i for stub in self.shared.stubs for i in stub)

    def place(self, layout: Layout) -> layouts.DocumentLayout:
        lengths = [len(stub) for stub in self.shared.stubs]
        prefix, document = len(self.shared.prefix), len(self.document)
        return layouts.place(layout, prefix, document, lengths, self.max_value_tokens, self.document_block)


class PromptEncoder:
    """Tokenizer, template and decode settings, bound together. Holds no weights."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        settings: DecodeSettings,
        template: PromptTemplate,
        prompting: Prompting,
        context: int,
        eos_ids: frozenset[int],
    ) -> None:
        if prompting is Prompting.CHAT and not tokenizer.chat_template:
            raise PromptError("the tokenizer has no chat template: set the model's prompting to 'plain'")
        self.tokenizer = tokenizer
        self.settings = settings
        self.template = template
        self.prompting = prompting
        self.context = context
        self.eos_ids = eos_ids
        added = tokenizer.added_tokens_decoder.values()
        self._markers = sorted({*tokenizer.all_special_tokens, *(t.content for t in added if t.content.strip())})
        # Markers that are not "special" to the tokenizer and mean something to the template, like Qwen3's <think>.
        template_text = tokenizer.chat_template or ""
        inner = [t.content for t in added if not t.special and len(t.content) > 1 and t.content in template_text]
        self._untrusted = UntrustedText(tokenizer, inner)
        self._lines = LineEncoder(tokenizer)
        self._shared = lru_cache(maxsize=1024)(self._build_shared)
        self._trie = lru_cache(maxsize=4096)(self._build_trie)
        if prompting is Prompting.CHAT:
            self._chat(_DOCUMENT)  # a template that refuses this refuses every document

    @classmethod
    def from_spec(cls, spec: DecoderSpec) -> PromptEncoder:
        """Loads tokenizer and model configuration, no weights.

        Raises SettingsError where fine-tuned weights would be decoded otherwise than they were trained.
        """
        recipe.check(spec)
        files = source.locate(spec.model, weights=False)
        config = source.load_config(files)  # first: transformers reads it with the tokenizer, too, and would blame that
        tokenizer = source.load_tokenizer(files)
        source.check_vocabulary(files, config, tokenizer)
        return cls(
            tokenizer,
            settings=spec.settings,
            template=spec.template,
            prompting=spec.model.prompting,
            context=source.context_length(config, long_context=spec.model.long_context),
            eos_ids=source.eos_ids(files, config, tokenizer),
        )

    def budget(self, schema: Schema) -> int:
        """Tokens that a document of `schema` may have: min(setting, context - prefix - suffix - layout tail).

        Raises PromptError where nothing is left for the document.
        """
        shared, settings = self._shared(schema), self.settings
        taken = len(shared.prefix) + len(shared.suffix)
        taken += layouts.tail(settings.layout, [len(s) for s in shared.stubs], settings.max_value_tokens)
        room = min(settings.max_document_tokens, self.context - taken)
        if room < 1:
            raise PromptError(
                f"schema {schema.name!r}: prefix, stubs and values of its {len(schema)} attributes take {taken} of the "
                f"model's {self.context} positions and leave none for a document"
            )
        return room

    def encode(self, document: Document) -> EncodedDocument:
        """Encodes a document's text, cut to the budget and marked where it is longer."""
        budget = self.budget(document.schema)
        ids, text = self._untrusted.encode(document.text, budget)
        cut = len(ids) > budget
        if self.settings.grounding is Grounding.OFF:
            text = ""
        elif cut:
            text = self._untrusted.beginning(text, budget)
        return EncodedDocument(ids[:budget], document.schema, cut, text)

    def prompt(self, document: EncodedDocument) -> Prompt:
        shared = self._shared(document.schema)
        allowed: tuple[Allowed | None, ...] = ()
        if self.settings.grounding is Grounding.ENFORCE:
            allowed = constraints(self.vocabulary, document.text, document.schema, self.template.absent)
        if self.settings.closed_values is ClosedValues.LISTED:
            free = allowed or (None,) * len(document.schema)
            allowed = tuple(self._trie(a) if a.values else f for a, f in zip(document.schema, free, strict=True))
        settings, ids = self.settings, tuple(document.ids) + shared.suffix
        return Prompt(shared, ids, settings.max_value_tokens, allowed, settings.document_block)

    def long_values(self, schema: Schema) -> list[LongValue]:
        """Values of closed lists that take more than `max_value_tokens`; `encode` refuses documents that ask for one
        under `closed_values: listed`."""
        limit = self.settings.max_value_tokens
        return [long for attribute in schema for long in long_values(attribute, self._lines, limit)]

    def value_ids(self, attribute: Attribute, text: str) -> list[int]:
        """Ids of a value as the model would write it after its stub: leading blank, text, terminator; at most K_max.

        Raises PromptError for a text of several lines: only the first could be read back."""
        if not text:
            return [self.newline_id]
        if not is_one_line(text):
            raise PromptError(f"value {text!r} of {attribute.name!r} has more than one line")
        return list(self._lines.value(attribute, f" {text}\n")[: self.settings.max_value_tokens])

    def value_text(self, ids: Sequence[int]) -> str:
        """Text of a value's ids up to its terminator, without the one blank that follows the ':'."""
        text = self.decode(ids).partition("\n")[0]
        return text.removeprefix(" ")

    def decode(self, ids: Sequence[int]) -> str:
        text = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a value: text with a newline in it (some vocabularies have ')\\n'), and every eos id."""
        if not hasattr(self, "_stop_ids"):
            texts = self.tokenizer.batch_decode([[i] for i in range(len(self.tokenizer))])
            self._stop_ids = self.eos_ids | {i for i, text in enumerate(texts) if "\n" in text}
            self._bare_stop_ids = self.eos_ids | {i for i, text in enumerate(texts) if text.startswith("\n")}
            if not self._stop_ids:
                raise PromptError("the tokenizer has neither an end-of-text token nor one with a newline")
        return self._stop_ids

    @property
    def vocabulary(self) -> Vocabulary:
        """What each id writes. Raises VocabularyError where the tokenizer does not say."""
        if not hasattr(self, "_vocabulary"):
            self._vocabulary = Vocabulary.from_tokenizer(self.tokenizer, self.stop_ids, self.eos_ids)
        return self._vocabulary

    @property
    def newline_id(self) -> int:
        """Id of the bare terminator."""
        return self._lines.newline_id

    @property
    def bare_stop_ids(self) -> frozenset[int]:
        """Those of `stop_ids` that write nothing of the value."""
        _ = self.stop_ids
        return self._bare_stop_ids

    def _build_trie(self, attribute: Attribute) -> TokenTrie:
        limit = self.settings.max_value_tokens
        return value_trie(attribute, self.template.absent, self._lines, self.bare_stop_ids, limit)

    def _build_shared(self, schema: Schema) -> SchemaPrompt:
        self._refuse_markers(schema)
        if self.settings.closed_values is ClosedValues.LISTED:
            for attribute in schema:
                if attribute.values:
                    self._trie(attribute)  # a value that cannot be written is refused before its first document
        before, after = self._frame(schema)
        first, later = zip(*(self.stub(attribute) for attribute in schema), strict=True)
        if self.template.stub is Stub.SHORTEST:
            first, later = _shortest(first), _shortest(later)
        stubs = (first[0], *later[1:]) if self.settings.layout is Layout.GAPS else first
        return SchemaPrompt(schema, self._prefix_ids(before), self._encode_trusted(after), stubs)

    def _refuse_markers(self, schema: Schema) -> None:
        """A row may bring its own attribute names: none of them may act as a control token of the prefix."""
        for attribute in schema:
            for text in (attribute.name, attribute.description, *attribute.values):
                for marker in self._markers:
                    if marker in text:
                        raise PromptError(f"attribute {attribute.name!r}: {text!r} holds the control token {marker!r}")

    def _frame(self, schema: Schema) -> tuple[str, str]:
        """Template text before and after the document."""
        template = self.template
        instruction = template.instruction.replace("{attributes}", "\n".join(map(_describe, schema)))
        user = instruction + template.before_document + _DOCUMENT + template.after_document
        if self.prompting is Prompting.CHAT:
            text = self._chat(user)
        else:
            text = "\n\n".join(filter(None, [template.system, user])) + "\n\n"
        if text.count(_DOCUMENT) != 1:
            raise PromptError("the chat template does not show the user message exactly once")
        before, _, after = text.partition(_DOCUMENT)
        return before, after

    def _chat(self, user: str) -> str:
        """What the chat template makes of the messages, up to where the answer begins, with nothing left to think."""
        system, error = self.template.system, None
        tries = [[("system", system), ("user", user)]] if system else []
        # Some templates refuse a system message (Gemma 2), some drop it: then the user says it.
        tries.append([("user", f"{system}\n\n{user}" if system else user)])
        for messages in tries:
            try:
                # `enable_thinking` is what Qwen3-like templates read; others ignore it.
                text = self.tokenizer.apply_chat_template(
                    [{"role": role, "content": content} for role, content in messages],
                    add_generation_prompt=True,
                    tokenize=False,
                    enable_thinking=False,
                )
            except Exception as refused:  # jinja2 raises what the template's author chose
                error = error or refused
                continue
            if system.strip() in text:
                if text.endswith(_TURN) and _CHANNEL in self.tokenizer.chat_template:
                    return text + _FINAL
                thinks = text.rpartition(_THINK)[2] if _THINK in text else _THOUGHT
                return str(text) if _THOUGHT in thinks else f"{text.rstrip()}\n\n{_THOUGHT}\n\n"
        raise PromptError(f"the tokenizer's chat template refused the messages: {error or 'it drops them'}") from error

    def _prefix_ids(self, text: str) -> tuple[int, ...]:
        ids = self._encode_trusted(text)
        # A chat template writes its own BOS; plain text gets the tokenizer's, once.
        bos = self.tokenizer.bos_token_id
        if self.prompting is Prompting.PLAIN and bos is not None and self.tokenizer("a").input_ids[:1] == [bos]:
            ids = (bos, *ids)
        return ids

    def stub(self, attribute: Attribute) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A whole key as the first line, and as a later one (with the newline that ends the value before it)."""
        return self._lines.key(attribute)

    def _encode_trusted(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids) if text else ()


def _shortest(keys: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The shortest beginning of each key that no other shares; its ':' at the latest, which no name holds."""
    shared = Counter(key[:length] for key in keys for length in range(1, len(key) + 1))
    return tuple(key[: next((n for n in range(1, len(key)) if shared[key[:n]] == 1), len(key))] for key in keys)


def _describe(attribute: Attribute) -> str:
    text = f"- {attribute.name}"
    if attribute.description:
        text += f": {attribute.description}"
    if attribute.values:
        text += f" ({'any' if attribute.many else 'one'} of: {', '.join(attribute.values)})"
    if attribute.many:
        text += f" (separate several values by '{SEPARATOR}')"
    return text
