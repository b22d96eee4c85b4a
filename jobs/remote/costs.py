"""What answers cost: tokens as the endpoint reports them, times a price that the user gives or conf/prices.yaml has."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from jobs.remote.journal import Spent
from pipeline.job import JobError
from pipeline.prices import hosted_prices


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens. source: who says so."""

    input: float
    output: float
    source: str

    def dollars(self, spent: Spent) -> float:
        """The full price: what a provider takes off for cached or batched tokens is left out."""
        return (spent.input_tokens * self.input + spent.output_tokens * self.output) / 1e6


def price_of(model: str, input_price: float | None, output_price: float | None) -> Price | None:
    """The price given, else that of the model in conf/prices.yaml, else None. Raises JobError for half a price."""
    if (input_price is None) != (output_price is None):
        raise JobError("--input-price and --output-price belong together: give both or none")
    if input_price is not None and output_price is not None:
        return Price(input_price, output_price, "given")
    known = hosted_prices().get(model)
    return Price(known.input, known.output, f"conf/prices.yaml, {known.date}") if known else None


def cost(spent: Spent, price: Price | None) -> dict[str, Any]:
    """JSON-able: tokens and dollars, null without a price or where the endpoint did not report all tokens."""
    dollars = None if price is None or spent.unreported else price.dollars(spent)
    return asdict(spent) | {"dollars": dollars}


def spoken(spent: Spent, price: Price | None) -> str:
    """The same in one line."""
    line = f"{spent.answers} answers, {spent.input_tokens:,} tokens in, {spent.output_tokens:,} out"
    if spent.unreported:
        return f"{line}, {spent.unreported} answers without a count of tokens: no sum of dollars"
    return f"{line}, {price.dollars(spent):.4f} dollars" if price else f"{line}, no price given"
