"""Prices from conf/prices.yaml: machine-hours (assumptions that the user sets) and hosted models (as read, dated)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pipeline.checked import ConfigError, read_mapping
from pipeline.shipped import shipped

#: The file that ships.
PRICES = "prices.yaml"
#: Keys of its entries that are no numbers.
_TEXTS = ("source", "date", "sheet", "note")


@dataclass(frozen=True, slots=True)
class MachinePrice:
    """What one machine costs. `source` says who says so and begins with "assumption" where nobody does.

    dollars_per_hour: on demand. spot: where it may be taken away. own: of a machine that is bought, with power and
    upkeep, over its life. flops, bytes_per_second, memory_bytes: the most that its data sheet promises of dense 16-bit
    products, the rate and the size of its memory, None where no data sheet says so. sheet: which one, and of when.
    """

    name: str
    dollars_per_hour: float
    source: str
    date: str
    spot: float | None = None
    own: float | None = None
    flops: float | None = None
    bytes_per_second: float | None = None
    memory_bytes: float | None = None
    sheet: str = ""

    @property
    def classes(self) -> dict[str, float]:
        """{price class: dollars per hour}, those that are known."""
        found = {"on demand": self.dollars_per_hour, "spot": self.spot, "own hardware": self.own}
        return {name: price for name, price in found.items() if price is not None}


@dataclass(frozen=True, slots=True)
class HostedPrice:
    """Dollars per million tokens of a hosted model; `batch_factor` is the share its batch interface charges.

    source, date: the page that the prices were read on, and of when it is. note: what a reader of dollars reckoned with
    them must know.
    """

    name: str
    input: float
    output: float
    batch_factor: float
    source: str
    date: str
    cached_input: float | None = None
    note: str = ""

    def dollars(self, input_tokens: float, output_tokens: float) -> float:
        """Price of so many tokens at the full, not the batch, rate."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


@dataclass(frozen=True, slots=True)
class Prices:
    """A file of prices. origin: its name."""

    machines: Mapping[str, MachinePrice]
    hosted: Mapping[str, HostedPrice]
    origin: str


P = TypeVar("P", MachinePrice, HostedPrice)


def read_prices(path: Path | None = None) -> Prices:
    """The prices of a file, or those that ship. Raises `ConfigError` naming file, entry and key."""
    origin = f"conf/{PRICES}" if path is None else path.name
    tree = shipped(PRICES) if path is None else read_mapping(path)
    machines = _entries(tree, "machines", MachinePrice, origin)
    return Prices(machines, _entries(tree, "hosted", HostedPrice, origin), origin)


def machine_prices() -> dict[str, MachinePrice]:
    return dict(read_prices().machines)


def hosted_prices() -> dict[str, HostedPrice]:
    return dict(read_prices().hosted)


def _entries(tree: Mapping[str, Any], section: str, kind: type[P], origin: str) -> dict[str, P]:
    entries = tree.get(section) or {}
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{origin}: {section}: must be a section of names")
    found = {}
    for name, entry in entries.items():
        where = f"{origin}: {section}.{name}"
        try:
            facts: dict[str, Any] = {key: str(value) if key in _TEXTS else float(value) for key, value in entry.items()}
            found[name] = kind(name=name, **facts)
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {error}") from error
        if any(not 0 <= value < float("inf") for value in facts.values() if isinstance(value, float)):
            raise ConfigError(f"{where}: prices and rates must be finite and not negative: {facts}")
    return found
