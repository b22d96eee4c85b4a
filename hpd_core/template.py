"""The wording of prompts, as plain frozen data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from hpd_core.settings import SettingsError


class Stub(StrEnum):
    """What of an attribute's key stands before its value."""

    #: The whole key and its ':'.
    KEY = "key"
    #: The fewest tokens that no other key of the schema begins with, mostly one: whole keys stand in the prefix, where
    #: a fine-tuned model finds them. Stubs are fed for every document, the prefix is not.
    SHORTEST = "shortest"


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Text around the document. `{attributes}` in `instruction` is replaced by one line per attribute.

    The prompt is `[instruction + schema][before_document][document][after_document] [stub 1] … [stub N]`; everything
    before the document is shared by all documents of a schema. A stub is `<attribute name>:`, or what
    `stub` leaves of it.

    system: system message, for chat templates that have one; plain prompts begin with it.
    instruction: what is asked; `{attributes}` stands for the schema.
    before_document: between instruction and document.
    after_document: behind the document, before the turn ends.
    absent: what is written for an attribute that the text does not have; empty for the bare end of the line.
    stub: what of a key stands before its value: all of it, or as little as tells it from the others.
    """

    system: str = "You extract product attributes. You copy values from the text of the product."
    instruction: str = (
        "Extract these attributes from the product text, one per line as 'Name: value'. "
        "Copy each value exactly as it is written in the text. "
        "Write n/a for an attribute that the text does not mention.\n\nAttributes:\n{attributes}\n\n"
    )
    before_document: str = "Product text:\n"
    after_document: str = ""
    absent: str = "n/a"
    stub: Stub = Stub.KEY

    def __post_init__(self) -> None:
        object.__setattr__(self, "stub", Stub(self.stub))
        if self.instruction.count("{attributes}") > 1:
            raise SettingsError("prompt instruction: '{attributes}' may stand in it once")
        if self.stub is Stub.SHORTEST and "{attributes}" not in self.instruction:
            raise SettingsError(
                "prompt stub 'shortest' needs '{attributes}' in the instruction: whole keys stand only there"
            )

    def as_dict(self) -> dict[str, str]:
        """JSON-able facts for fingerprints."""
        facts = {name: str(value) for name, value in asdict(self).items()}
        if self.stub is Stub.KEY:  # as before there was any other: old outputs and adapters keep their fingerprints
            facts.pop("stub")
        return facts
