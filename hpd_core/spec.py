"""What a decoder is made of, as plain frozen data: model, decode settings, prompt template; and its fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpd_core.model_spec import ModelSpec, Quantization
from hpd_core.settings import INDIFFERENT, ClosedValues, DecodeSettings, Grounding, SettingsError
from hpd_core.template import PromptTemplate

if TYPE_CHECKING:
    from hpd_core.confidence import ConfidenceRule

#: {part: {key that is younger than the first outputs: value at which it is left out}}: their fingerprints stay.
_YOUNGER: Mapping[str, Mapping[str, Any]] = {
    "model": {"long_context": False, "quantization": Quantization.NONE},
    "settings": {
        "grounding": Grounding.OFF,
        "kv_mib": None,
        "closed_values": ClosedValues.FREE,
        "absent_margin": 0.0,
        "document_block": 1,
        "draft_tokens": 0,
    },
}


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Everything that decides a decoder's answers, small enough to send to every worker.

    confidence: what becomes of values that are not sure enough; None keeps them all. See `confidence.with_confidence`.
    """

    model: ModelSpec
    settings: DecodeSettings = field(default_factory=DecodeSettings)
    template: PromptTemplate = field(default_factory=PromptTemplate)
    # Not hashed, as its mappings cannot be; equal specs still have equal hashes, which is all that caches need.
    confidence: ConfidenceRule | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if self.settings.absent_margin and self.template.absent:
            word = self.template.absent
            raise SettingsError(
                f"absent_margin: this prompt writes {word!r} for absent, and not the bare end of the line"
            )

    def as_dict(self) -> dict[str, Any]:
        """JSON-able facts for manifests and fingerprints, without those of the model that do not decide answers."""
        facts = json.loads(json.dumps(asdict(replace(self, confidence=None))))
        facts["template"] = self.template.as_dict()
        facts.pop("confidence")  # where there is none, as before there was any: old outputs can be resumed
        if self.confidence is not None:
            facts["confidence"] = self.confidence.facts()
        for key in ("name", "install", "template", "notice"):
            facts["model"].pop(key)
        from hpd_core import recipe, source  # they build on this file

        # Where weights and adapters lie does not decide answers, what is in them does.
        facts["model"]["source"] = source.identity(self.model)
        if self.model.adapter:
            facts["model"]["adapter"] = recipe.content_hash(self.model.adapter)
        for key in INDIFFERENT:
            facts["settings"].pop(key)
        if not self.settings.draft_tokens:
            facts["settings"].pop("draft_rows")
        for part, younger in _YOUNGER.items():
            facts[part] = {
                key: value for key, value in facts[part].items() if key not in younger or value != younger[key]
            }
        return facts


def fingerprint(facts: Mapping[str, Any]) -> str:
    """16 hex digits of the SHA-256 of `facts` as canonical JSON."""
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
