"""The chain in one screen: documents -> prompts -> value tokens -> typed rows."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from hpd_core import recipe, sizing, source
from hpd_core.confidence import ConfidenceRule, ConfidenceSettings, with_confidence
from hpd_core.decode import Decoder
from hpd_core.grounding import SourceText
from hpd_core.model import Model
from hpd_core.model_spec import ModelSpec
from hpd_core.probe import measure_loaded
from hpd_core.prompt import EncodedDocument, PromptEncoder
from hpd_core.reading import Reading, ValueStatus, read
from hpd_core.rows import Counts, Extraction, Row, RowStatus, Value
from hpd_core.schema import Attribute, Document, Schema, SchemaError
from hpd_core.settings import DecodeSettings, Grounding
from hpd_core.slots import SlotTokens
from hpd_core.spec import DecoderSpec
from hpd_core.template import PromptTemplate

log = logging.getLogger(__name__)


class ModelNotice(UserWarning):
    """Terms that come with a model, such as the licence of the data that it was trained on."""


#: Gold answers to write instead of the model's own: {attribute name: text} per document, absent names left out.
Forced = Sequence[dict[str, str]]


class Extractor(Protocol):
    """What a pipeline needs of a decoder, HPD or baseline."""

    encoder: PromptEncoder

    def extract_encoded(self, documents: Sequence[EncodedDocument], forced: Forced | None = None) -> Extraction: ...


class HyperParallelDecoder:
    """Extracts the attributes of many documents at once.

    >>> decoder = HyperParallelDecoder.from_pretrained("smollm2-135m-ave")
    >>> rows = decoder.extract(["Diesel Men's Exposure High-Top Sneaker"], schema)
    >>> rows[0].as_dict()
    """

    def __init__(self, model: Model, encoder: PromptEncoder, confidence: ConfidenceRule | None = None) -> None:
        self.model = model
        self.encoder = encoder
        self.confidence = confidence
        self.decoder = Decoder(model, encoder.settings, encoder.stop_ids)
        if encoder.settings.grounding is Grounding.ENFORCE:
            _ = encoder.vocabulary  # a tokenizer that cannot be constrained is refused now, not row by row

    @classmethod
    def from_pretrained(
        cls,
        model: str | ModelSpec,
        settings: DecodeSettings | None = None,
        template: PromptTemplate | None = None,
        *,
        confidence: ConfidenceSettings = ConfidenceSettings(),  # noqa: B008 (frozen)
        device: str = "auto",
        threads: int | None = None,
    ) -> HyperParallelDecoder:
        """Loads a registered name, a Hugging Face directory or hub id, or a GGUF file.

        Settings and template that are not given are those that the weights were fine-tuned for, or the defaults.
        Raises SettingsError, ModelNotFoundError or UnsupportedModelError before any weight is read; warns with a
        ModelNotice where the model carries one.
        """
        spec = with_confidence(recipe.decoder_spec(source.model_spec(model), settings, template), confidence)
        notice = recipe.notice_of(spec.model)
        if notice:  # here and not in `from_spec`, which every actor of a job calls
            warnings.warn(f"{spec.model.name}: {notice}", ModelNotice, stacklevel=2)
        return cls.from_spec(spec, device=device, threads=threads)

    @classmethod
    def from_spec(cls, spec: DecoderSpec, *, device: str = "auto", threads: int | None = None) -> HyperParallelDecoder:
        """threads: CPU threads of torch in this process; unchanged where it is None.

        Settings that are `auto` are measured, in seconds, and stand as numbers in `encoder.settings`.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        encoder = PromptEncoder.from_spec(spec)
        model = Model.load(spec.model, device=device)
        if spec.settings.is_auto:
            measured = measure_loaded(model, spec.settings)
            encoder.settings = sizing.decided(spec.settings, measured)
            log.info("measured: %s; decided: %s", measured, sizing.shown(encoder.settings))
        return cls(model, encoder, spec.confidence)

    def extract(self, documents: Sequence[str | Document], schema: Schema | None = None) -> list[Row]:
        """One typed row per document, in order. Texts need `schema`; a Document brings its own.

        A document without text, or one that cannot be asked, is a row with a status and a reason.
        """
        return extract_all(self, _with_schema(documents, schema)).rows

    def extract_encoded(self, documents: Sequence[EncodedDocument], forced: Forced | None = None) -> Extraction:
        """Rows of encoded documents, in order. Equal documents (same ids, text and schema) are decoded once."""
        counts = Counts()
        owner = self._owners(documents, forced)
        chosen = sorted(set(owner))
        counts.duplicates = len(documents) - len(chosen)
        prompts = [self.encoder.prompt(documents[number]) for number in chosen]
        answers = None if forced is None else [forced[n] for n in chosen]
        tokens = self.decoder.decode(prompts, counts, self._forced_ids([documents[n] for n in chosen], answers))
        by_number = dict(zip(chosen, tokens, strict=True))
        rows = [make_row(self.encoder, doc, by_number[owner[n]]) for n, doc in enumerate(documents)]
        if self.confidence is not None:
            rows = [self.confidence.apply(row) for row in rows]
        for slots in tokens:
            counts.longest_value_tokens += max(len(slot.ids) for slot in slots)
        counts.count_values(rows)
        return Extraction(rows, counts)

    def _owners(self, documents: Sequence[EncodedDocument], forced: Forced | None) -> list[int]:
        """For each document the number of the first one equal to it, forced answers included, whose answer it takes."""
        first: dict[Hashable, int] = {}
        owners = []
        for number, document in enumerate(documents):
            answers = None if forced is None else tuple(sorted(forced[number].items()))
            owners.append(first.setdefault((document.schema, tuple(document.ids), document.text, answers), number))
        return owners

    def _forced_ids(self, documents: Sequence[EncodedDocument], forced: Forced | None) -> list[list[list[int]]] | None:
        if forced is None:
            return None
        absent = self.encoder.template.absent
        return [
            [self.encoder.value_ids(attribute, answers.get(attribute.name, absent)) for attribute in document.schema]
            for document, answers in zip(documents, forced, strict=True)
        ]


def extract_all(extractor: Extractor, documents: Sequence[Document]) -> Extraction:
    """One row per document, in order; one without text or that cannot be asked is a row with a status and a reason."""
    rows: dict[int, Row] = {}
    encoded: dict[int, EncodedDocument] = {}
    for number, document in enumerate(documents):
        if not document.text or document.text.isspace():
            rows[number] = Row(document.schema, RowStatus.NO_TEXT, error="the document has no text")
            continue
        try:
            encoded[number] = extractor.encoder.encode(document)
        except ValueError as error:
            rows[number] = Row(document.schema, RowStatus.ERROR, error=str(error))
    extraction = extractor.extract_encoded(list(encoded.values()))
    rows.update(zip(encoded, extraction.rows, strict=True))
    return Extraction([rows[number] for number in range(len(documents))], extraction.counts)


def _with_schema(documents: Sequence[str | Document], schema: Schema | None) -> list[Document]:
    whole = []
    for number, item in enumerate(documents):
        if isinstance(item, str):
            if schema is None:
                raise SchemaError(f"document {number} is a text without a schema: pass `schema` or a Document")
            item = Document(item, schema)
        whole.append(item)
    return whole


def make_row(encoder: PromptEncoder, document: EncodedDocument, slots: Sequence[SlotTokens]) -> Row:
    """Types the decoded slots of one document; NaN logits make it a row in error, never garbage text."""
    if not all(slot.is_finite for slot in slots):
        return Row(document.schema, RowStatus.ERROR, error="the model gave logits that are not finite")
    source = source_of(encoder, document)
    values = tuple(make_value(encoder, a, slot, source) for a, slot in zip(document.schema, slots, strict=True))
    status = RowStatus.CUT if document.cut else RowStatus.OK
    return Row(document.schema, status, values, document_tokens=len(document.ids), text=document.text)


def make_value(encoder: PromptEncoder, attribute: Attribute, slot: SlotTokens, source: SourceText | None) -> Value:
    raw = encoder.value_text(slot.ids)
    read_as = Reading(None, ValueStatus.TRUNCATED) if slot.truncated else read(attribute, raw, source)
    if read_as.status is ValueStatus.UNGROUNDED and encoder.settings.grounding is Grounding.ENFORCE:
        read_as = replace(read_as, value=None)
    return Value(
        attribute.name,
        read_as.value,
        read_as.status,
        raw,
        slot.logprob,
        len(slot.ids),
        read_as.spans,
        forced_tokens=slot.forced,
    )


def source_of(encoder: PromptEncoder, document: EncodedDocument) -> SourceText | None:
    """Where the document's values are to be looked up; None where grounding is off."""
    if encoder.settings.grounding is Grounding.OFF:
        return None
    if document.ids and not document.text:
        raise ValueError("grounding needs the document's text: its encoder was set up without grounding")
    return SourceText(document.text)
