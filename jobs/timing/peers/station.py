"""A peer as an engine of the benchmark: our prompts and answers, its decoding. Imports torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import torch

from hpd_core import source
from hpd_core.baselines import ArDecoder, Keys, PerAttributeDecoder
from hpd_core.extractor import Extractor
from hpd_core.generation import Request
from hpd_core.prompt import PromptEncoder
from hpd_core.rows import Counts
from hpd_core.settings import SettingsError
from hpd_core.sizing import free_memory
from jobs.timing.engines import Engine
from jobs.timing.peers import worker
from jobs.timing.process import EngineFailed
from jobs.timing.work import Order, PeerReady, Turn

#: Sequences that a peer may decode at once: more than it has memory for, so that it chooses.
IN_FLIGHT = 512
#: Share of the free memory that its paged cache may take at most.
_KV_SHARE = 0.3

_Write = Callable[[Sequence[Request], Counts], list[tuple[int, ...]]]


class _Ar(ArDecoder):
    """Its requests and its parser; `write` decodes."""

    def __init__(self, encoder: PromptEncoder, keys: Keys, write: _Write) -> None:
        super().__init__(cast(Any, None), encoder, keys=keys)
        self._decode = write

    def _write(self, requests: Sequence[Request], counts: Counts) -> list[tuple[int, ...]]:
        return self._decode(requests, counts)


class _PerAttribute(PerAttributeDecoder):
    """The same of one request per attribute."""

    def __init__(self, encoder: PromptEncoder, write: _Write) -> None:
        super().__init__(cast(Any, None), encoder)
        self._decode = write

    def _write(self, requests: Sequence[Request], counts: Counts) -> list[tuple[int, ...]]:
        return self._decode(requests, counts)


class Pipe:
    """The process of a peer. Raises EngineFailed with its last word where it ends or fails."""

    def __init__(self, command: Sequence[str]) -> None:
        # A group of its own: engines have processes below theirs, which would outlive it.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def ask(self, facts: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(facts) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EngineFailed(f"its process ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise EngineFailed(answer["failed"])
        done: dict[str, Any] = answer["done"]
        return done

    def close(self) -> None:
        """Ends the process and all below it: there is nothing to save."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            self._process.communicate()


class PeerStation:
    """A warm peer."""

    def __init__(self, order: Order) -> None:
        assert order.peer is not None
        if order.forced is None:
            raise SettingsError(f"{order.engine.label}: needs forced answers, it knows no end after so many lines")
        self._order, self._pipe = order, None
        self._encoder = PromptEncoder.from_spec(order.spec)
        self._encoded = [self._encoder.encode(document) for document in order.documents]
        self._told: dict[str, Any] = {}
        requests = self._requests()
        longest = max(len(r.ids) + len(r.forced or ()) for r in requests)
        self._pipe = Pipe([order.peer.python, worker.__file__, order.engine.peer])
        try:
            answer = self._pipe.ask(
                {
                    "model": order.peer.model,
                    "precision": order.peer.precision,
                    # As many as our own engines take in the same place.
                    "threads": order.threads or torch.get_num_threads(),
                    "kv_bytes": self._kv_bytes(requests),
                    "in_flight": IN_FLIGHT,
                    "batch_tokens": order.spec.settings.step_rows,
                    "longest": longest,
                }
            )
            self.ready = PeerReady(answer["version"], answer["settings"], answer["resident"])
            few = requests[:2]
            self._pipe.ask(_asked(few, [_answer(r) for r in few], order.cold))
        except BaseException:
            self._pipe.close()
            raise

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()

    def run(self) -> Turn:
        """All documents once; seconds are the peer's own."""
        counts = self._decoder(self._send).extract_encoded(self._encoded, self._order.forced).counts
        told = self._told
        return Turn(
            told["seconds"],
            told["cpu_seconds"],
            counts,
            None,
            0,
            told["peak_bytes"],
            cache_told=told["cached_tokens"] is not None,
        )

    def _decoder(self, write: _Write) -> Extractor:
        return decoder_of(self._order.engine, self._encoder, write)

    def _requests(self) -> list[Request]:
        """All of them, as a run will send them."""
        found: list[Request] = []

        def collect(requests: Sequence[Request], _: Counts) -> list[tuple[int, ...]]:
            found.extend(requests)
            return [_answer(request) for request in requests]

        self._decoder(collect).extract_encoded(self._encoded, self._order.forced)
        return found

    def _send(self, requests: Sequence[Request], counts: Counts) -> list[tuple[int, ...]]:
        """The forced answers, after the peer has written as many tokens of its own."""
        assert self._pipe is not None
        answers = [_answer(request) for request in requests]
        self._told = told = self._pipe.ask(_asked(requests, answers, self._order.cold))
        lengths = [len(ids) for ids in answers]
        if told["written"] != lengths:
            raise EngineFailed(f"wrote {sum(told['written'])} tokens in place of {sum(lengths)}")
        count(counts, requests, lengths, told["cached_tokens"])
        return answers

    def _kv_bytes(self, requests: Sequence[Request]) -> int:
        """Enough for as many sequences as may be in flight, the longest ones, within a share of the free memory."""
        assert self._order.peer is not None
        config = source.load_config(source.ModelFiles(self._order.peer.model, {})).get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        lengths = sorted((len(r.ids) + len(_answer(r)) for r in requests), reverse=True)[:IN_FLIGHT]
        needed = 2 * 4 * config.num_hidden_layers * heads * width * sum(lengths)
        return int(min(1.2 * needed, _KV_SHARE * free_memory()))


def decoder_of(engine: Engine, encoder: PromptEncoder, write: _Write) -> Extractor:
    """What the requests of a peer's engine are, with `write` to decode them."""
    method = engine.name.removeprefix(f"{engine.peer}-")
    if method == "per-attribute":
        return _PerAttribute(encoder, write)
    return _Ar(encoder, Keys.PRESENT if method == "ar-present" else Keys.EVERY, write)


def count(counts: Counts, requests: Sequence[Request], lengths: Sequence[int], cached: int | None) -> None:
    """Adds the work of one run. cached: prompt tokens that the peer found; where it does not tell, none is taken off,
    so that what was needed is an upper bound."""
    counts.generated_tokens += sum(lengths)
    counts.decode_rows += sum(length - 1 for length in lengths)
    counts.cached_tokens += cached or 0
    counts.prompt_tokens += sum(len(r.ids) for r in requests) - (cached or 0)


def _asked(requests: Sequence[Request], answers: Sequence[tuple[int, ...]], cold: bool) -> dict[str, Any]:
    prefixes = dict.fromkeys(r.ids[: r.prefix] for r in requests if r.prefix)
    return {
        "prompts": [r.ids for r in requests],
        "lengths": [len(ids) for ids in answers],
        "prefixes": [] if cold else list(prefixes),
    }


def _answer(request: Request) -> tuple[int, ...]:
    return request.forced or ()
