"""Decoders whose steps run over buffers, held to the oracle."""

from __future__ import annotations

from hpd_core.decode import Decoder
from hpd_core.rows import Counts
from hpd_core.serial import decode_serial
from tests.core.test_exactness import assert_equal
from tests.core.tiny import STOP_IDS


def decoder_of(model, settings, **others):
    return Decoder(model, settings, STOP_IDS, **{"keep_logits": True, "graphs": True, **others})


def check(model, prompts, settings, same=assert_equal, forced=None, times=1):
    """Decodes `times` times, and holds the last answers to the oracle. The decoder, and the counts of that call."""
    decoder = decoder_of(model, settings)
    for _ in range(times):
        counts = Counts()
        got = decoder.decode(prompts, counts, forced)
    for n, prompt in enumerate(prompts):
        same(got[n], decode_serial(model, prompt, settings, STOP_IDS, forced and forced[n]))
    assert decoder._flight is None and all(slab.is_empty for slab in decoder._pool.slabs)
    return decoder, counts
