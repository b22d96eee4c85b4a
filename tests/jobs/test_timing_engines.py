"""Every engine over a tiny model: the same answers, work counted as the model's own hook sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hpd_core.call import Call
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.prompt import EncodedDocument
from hpd_core.rows import Counts
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import DecodeSettings, SettingsError
from hpd_core.spec import DecoderSpec
from hpd_core.template import PromptTemplate
from jobs.decoders import named
from jobs.timing.build import EachByItself, build
from jobs.timing.engines import ABLATIONS, CONTENDERS, NEED_FORCED, Engine
from jobs.timing.process import Fleet
from jobs.timing.roof import gemm_rate
from jobs.timing.station import Station, model_size, traced
from jobs.timing.work import Order, live_tokens
from tests.core.tiny_folder import write_tiny_model

torch.set_num_threads(1)
SCHEMAS = (
    Schema("a", tuple(map(Attribute, ("Brand", "Color", "Size")))),
    Schema("b", (Attribute("X"), Attribute("Yy"))),
)
DOCUMENTS = [Document("x" * (3 + 7 * n % 23) + str(n), SCHEMAS[n % 2]) for n in range(9)]
ANSWERS = [
    {"Brand": "ab", "Size": "L"}, {}, {"Color": "quite a long one"}, {"X": "pp", "Yy": "s"}, {}, {"Yy": "t"},
    {"Brand": "x", "Color": "y", "Size": "z"}, {"X": "a"}, {"Size": "12"},
]  # fmt: skip
BOTH = {(e.name, e.batch): e for e in CONTENDERS}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> DecoderSpec:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    return DecoderSpec(
        ModelSpec(str(folder), prompting=Prompting.PLAIN, dtype="float64"),
        DecodeSettings(max_value_tokens=6, tokens_per_step=60),
        PromptTemplate(system="", instruction="{attributes}\n", before_document="Text: "),
    )


@pytest.fixture(scope="module")
def loaded(spec: DecoderSpec) -> HyperParallelDecoder:
    decoder = HyperParallelDecoder.from_spec(spec, threads=1)
    # Its head is its embedding, so that it repeats what it read, wrong positions or not: give it one of its own.
    torch.manual_seed(5)
    decoder.model.hf.lm_head.weight = torch.nn.Parameter(torch.randn(257, 32, dtype=torch.float64))
    return decoder


@pytest.fixture(scope="module")
def encoded(loaded: HyperParallelDecoder) -> list[EncodedDocument]:
    return [loaded.encoder.encode(document) for document in DOCUMENTS]


def values(loaded: HyperParallelDecoder, engine: Engine, documents: list[EncodedDocument]) -> tuple[object, Counts]:
    found = build(engine, loaded)[0].extract_encoded(documents)
    return [[(v.raw, v.tokens) for v in row.values] for row in found.rows], found.counts


@pytest.mark.parametrize("without", list(ABLATIONS))
def test_hpd_without_an_optimisation_writes_the_same(
    loaded: HyperParallelDecoder, encoded: list[EncodedDocument], without: str
) -> None:
    documents = [*encoded, encoded[3]]
    whole, counts = values(loaded, Engine("hpd"), documents)
    less, other = values(loaded, Engine("hpd", without=without), documents)
    assert less == whole
    # … and what it switches off is really off
    if without == "prefix-cache":
        assert other.prefix_tokens == other.cached_tokens == 0 and other.prompt_tokens > counts.prompt_tokens
    elif without == "duplicates":
        assert (counts.duplicates, other.duplicates) == (1, 0) and other.documents == 10
    elif without == "wide-steps":
        assert other.model_calls != counts.model_calls  # here 96 rows are more than the 60 of the settings
    elif without == "stacking":
        assert other.steps > counts.steps


def test_prefill_and_decode_never_share_a_step_without_mixed_steps(
    loaded: HyperParallelDecoder, encoded: list[EncodedDocument]
) -> None:
    decoder = build(Engine("hpd", without="mixed-steps"), loaded)[0]
    kinds = []
    run = decoder.decoder._run  # type: ignore[attr-defined]
    decoder.decoder._run = lambda feeds, *rest: (kinds.append({f.is_prefill for f in feeds}), run(feeds, *rest))  # type: ignore[attr-defined]
    decoder.extract_encoded(encoded)
    assert {True} in kinds and {False} in kinds and {True, False} not in kinds


def test_a_static_batch_is_left_by_all_before_another_document_enters(
    loaded: HyperParallelDecoder, encoded: list[EncodedDocument]
) -> None:
    decoder = build(Engine("hpd", without="refill"), loaded)[0].decoder  # type: ignore[attr-defined]
    decoder.settings = replace(decoder.settings, tokens_per_step=12)
    batches: list[list[int]] = []
    admits = decoder._admits

    def asks(call: Call) -> bool:
        allowed = bool(admits(call))
        if allowed and not call.active:
            batches.append([])
        if allowed:
            batches[-1].append(call.asked[call.waiting[0]].slots)
        return allowed

    decoder._admits = asks
    decoder.decode([build(Engine("hpd"), loaded)[0].encoder.prompt(d) for d in encoded], Counts())
    # 5 documents of 3 slots and 4 of 2, those of one schema together; never more than 12 slots.
    assert batches == [[3, 3, 3, 3], [3, 2, 2, 2, 2]]


def test_all_rows_get_logits_only_where_that_is_asked(
    loaded: HyperParallelDecoder, encoded: list[EncodedDocument]
) -> None:
    for without, all_rows in (("", False), ("last-logits", True)):
        decoder = build(Engine("hpd", without=without), loaded)[0]
        with traced(loaded.model) as passes:
            decoder.extract_encoded(encoded)
        assert all(rows == tokens for tokens, rows in passes) == all_rows


@pytest.mark.parametrize("engine", [e for e in CONTENDERS if e.name != "ar-lookup"], ids=lambda e: e.label)
def test_an_engine_says_what_the_hook_sees(
    loaded: HyperParallelDecoder, encoded: list[EncodedDocument], engine: Engine
) -> None:
    decoder = build(engine, loaded)[0]
    with traced(loaded.model) as passes:
        counts = decoder.extract_encoded(encoded, ANSWERS).counts
    fed = sum(tokens for tokens, _ in passes)
    assert counts.model_calls == len(passes)
    assert live_tokens(counts) <= fed
    assert counts.slot_steps == counts.decode_rows > 0  # nothing is drafted or forced by a list here
    if engine.name == "hpd" or "continuous" in engine.name or engine == Engine("ar", 1):
        assert live_tokens(counts) == fed  # nothing is padded
    elif engine.batch > 1:
        assert live_tokens(counts) < fed
    assert counts.generated_tokens <= sum(rows for _, rows in passes)
    everything = sum(len(loaded.encoder.prompt(d).shared.prefix) + len(d.ids) for d in encoded)
    assert counts.prompt_tokens + counts.prefix_tokens + counts.cached_tokens >= everything


def test_cached_and_uncached_prompts_write_the_same(
    loaded: HyperParallelDecoder, encoded: list[EncodedDocument]
) -> None:
    whole, plain = values(loaded, Engine("per-attribute", 4), encoded)
    cached, counts = values(loaded, Engine("per-attribute-cached", 4), encoded)
    hpd, ours = values(loaded, Engine("hpd"), encoded)
    assert whole == cached == hpd
    assert plain.prompt_tokens == counts.prompt_tokens + counts.prefix_tokens + counts.cached_tokens
    # Prefix, documents and stubs are each fed once, as HPD feeds them.
    assert (counts.prompt_tokens, counts.prefix_tokens) == (ours.prompt_tokens, ours.prefix_tokens)


def test_present_keys_only_writes_what_is_there_and_an_end(
    loaded: HyperParallelDecoder, encoded: list[EncodedDocument]
) -> None:
    decoder = build(BOTH["ar-present", 8], loaded)[0]
    found = decoder.extract_encoded(encoded, ANSWERS)
    said = [{v.attribute: v.raw for v in row.values if v.raw} for row in found.rows]
    # K_max cuts the long one, for every engine alike.
    assert said == [{k: v[:5] if len(v) > 6 else v for k, v in a.items()} for a in ANSWERS]
    # One byte is one token: the first key is in the prompt, "Size: L" follows on a line of its own.
    encoder = loaded.encoder
    one = decoder.extract_encoded(encoded[:1], ANSWERS[:1]).counts
    assert one.generated_tokens == len(" ab\nSize: L") + 1
    assert decoder.extract_encoded(encoded[1:2], [{}]).counts.generated_tokens == 1
    every = build(BOTH["ar", 8], loaded)[0].extract_encoded(encoded[:1], ANSWERS[:1]).counts
    assert every.generated_tokens == len(f" ab\nColor: {encoder.template.absent}\nSize: L\n")


@pytest.mark.parametrize("name", sorted(NEED_FORCED))
def test_what_needs_forced_answers_says_so(
    loaded: HyperParallelDecoder, encoded: list[EncodedDocument], name: str
) -> None:
    engine = next(e for e in CONTENDERS if e.name == name)
    with pytest.raises(SettingsError, match="needs forced answers"):
        build(engine, loaded)[0].extract_encoded(encoded)


def test_continuous_batching_shares_the_pages_of_equal_beginnings(
    loaded: HyperParallelDecoder, encoded: list[EncodedDocument]
) -> None:
    shared = build(Engine("per-attribute-continuous"), loaded)[0].extract_encoded(encoded, ANSWERS).counts
    plain = build(Engine("per-attribute", 4), loaded)[0].extract_encoded(encoded, ANSWERS).counts
    assert 0 < shared.cached_tokens == plain.prompt_tokens - shared.prompt_tokens
    assert (shared.generated_tokens, shared.decode_rows) == (plain.generated_tokens, plain.decode_rows)


def test_equal_documents_share_an_answer_only_where_the_same_is_forced(
    loaded: HyperParallelDecoder, encoded: list[EncodedDocument]
) -> None:
    one = encoded[0]
    found = loaded.extract_encoded([one, one, one], [{"Brand": "a"}, {"Brand": "b"}, {"Brand": "a"}])
    assert [row.values[0].raw for row in found.rows] == ["a", "b", "a"]
    assert found.counts.duplicates == 1
    apart = EachByItself(loaded.model, loaded.encoder).extract_encoded([one, one], [{}, {}])
    assert apart.counts.duplicates == 0


def test_parameters_are_of_matrices_and_the_head_counts_once(loaded: HyperParallelDecoder) -> None:
    size = model_size(loaded.model)
    assert size.head == 257 * 32
    layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48 + 2 * 32
    assert size.body == 2 * layer + 32


def test_what_the_model_wrote_can_be_forced_again(spec: DecoderSpec) -> None:
    order = Order(Engine("hpd"), spec, 1, DOCUMENTS, None)
    answers = Station(order).record()
    assert [set(a) <= {x.name for x in d.schema} for a, d in zip(answers, DOCUMENTS, strict=True)] == [True] * 9
    free, forced = Station(order), Station(replace(order, forced=answers))
    # A tiny model fills every value to K_max, with which it stays as long when it is forced.
    assert free.run().counts.truncated == 23
    assert forced.run().counts.generated_tokens == free.run().counts.generated_tokens == 23 * 6


@pytest.mark.parametrize("cold", [False, True])
def test_a_warm_engine_has_its_prefixes_before_the_first_round_a_cold_one_never(spec: DecoderSpec, cold: bool) -> None:
    station = Station(Order(Engine("hpd"), spec, 1, DOCUMENTS, ANSWERS, cold))
    runs = [station.run(), station.run()]
    assert [bool(run.counts.prefix_tokens) for run in runs] == [cold, cold]
    assert all(run.widest > 1 and run.seconds > 0 and run.traced.tokens == live_tokens(run.counts) for run in runs)
    assert all(run.peak_bytes > 2**26 for run in runs)


def test_the_matrix_rate_is_a_rate() -> None:
    assert 1e7 < gemm_rate(64, 96, torch.float32, 0.02) < 1e13


class FakeWorker:
    """A process that is 100 bytes large."""

    def __init__(self) -> None:
        self.ready, self.stopped = type("Ready", (), {"resident": 100})(), False

    def ask(self, what: str) -> str:
        return what

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize(("free", "kept"), [(1000, True), (400, False)])
def test_engines_are_kept_between_turns_only_where_memory_allows(
    monkeypatch: pytest.MonkeyPatch, free: int, kept: bool
) -> None:
    made: list[FakeWorker] = []

    def make(order: object) -> FakeWorker:
        made.append(FakeWorker())
        return made[-1]

    monkeypatch.setattr("jobs.timing.process.Worker", make)
    fleet = Fleet(lambda engine: engine, 3, free)  # type: ignore[arg-type,return-value]
    for _ in range(2):
        assert [fleet.run(Engine(name)) for name in "abc"] == ["run"] * 3
    assert (fleet.kept, len(made)) == (kept, 3 if kept else 6)
    fleet.close()
    assert all(worker.stopped for worker in made)


def test_evaluate_knows_the_cached_prompts(loaded: HyperParallelDecoder, tmp_path: Path) -> None:
    assert named("per-attribute-cached")(loaded, 0).encoder is loaded.encoder
