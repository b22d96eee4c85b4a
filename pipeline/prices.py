"""Prices from conf/prices.yaml: machine-hours (assumptions that the user sets) and hosted models (as read, dated)."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.shipped import shipped


@dataclass(frozen=True, slots=True)
class MachinePrice:
    """What one machine costs. `source` says who says so and begins with "assumption" where nobody does."""

    name: str
    dollars_per_hour: float
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class HostedPrice:
    """Dollars per million tokens of a hosted model; `batch_factor` is the share its batch interface charges."""

    name: str
    input: float
    output: float
    batch_factor: float
    source: str
    date: str
    cached_input: float | None = None

    def dollars(self, input_tokens: float, output_tokens: float) -> float:
        """Price of so many tokens at the full, not the batch, rate."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


def machine_prices() -> dict[str, MachinePrice]:
    entries = shipped("prices.yaml")["machines"]
    return {n: MachinePrice(n, float(e["dollars_per_hour"]), e["source"], str(e["date"])) for n, e in entries.items()}


def hosted_prices() -> dict[str, HostedPrice]:
    entries = shipped("prices.yaml")["hosted"]
    return {name: HostedPrice(name=name, **entry | {"date": str(entry["date"])}) for name, entry in entries.items()}
