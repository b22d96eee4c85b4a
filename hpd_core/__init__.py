"""Hyper-Parallel Decoding: every value of every stacked document grows at once (arXiv 2604.26209)."""

import logging

from hpd_core.model_spec import ModelSpec
from hpd_core.schema import Attribute, Document, Schema, ValueType
from hpd_core.settings import DecodeSettings, Grounding, Layout, Visibility
from hpd_core.spec import DecoderSpec
from hpd_core.template import PromptTemplate

__all__ = [
    "Attribute",
    "DecodeSettings",
    "DecoderSpec",
    "Document",
    "Grounding",
    "HyperParallelDecoder",
    "Layout",
    "ModelSpec",
    "PromptTemplate",
    "Schema",
    "ValueType",
    "Visibility",
]

# transformers imports torchao wherever it is installed, and every process would tell which of its kernels for other
# devices it could not load.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)


def __getattr__(name: str) -> object:
    # torch takes seconds to import: drivers and tokenisation tasks that only hold schemas do without it.
    if name == "HyperParallelDecoder":
        from hpd_core.extractor import HyperParallelDecoder

        return HyperParallelDecoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
