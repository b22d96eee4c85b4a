"""The arithmetic of the paper's own cost claims, worked out: arXiv 2604.26209, in dollars."""

from __future__ import annotations

from typing import Any

#: As the paper states them, per 1,000 products of Qwen3-32B, and for its corpus.
AR_PER_1000, HPD_PER_1000 = 7.74, 0.89
DOCUMENTS = 500_000_000
SAVED_OVER_AR, SAVED_OVER_HOSTED = 597_000, 486_000


def arithmetic() -> dict[str, Any]:
    """What the stated figures imply of one another.

    saved_by_rates: what the two rates save over the corpus. rate_of_saving_*: what the stated savings are per 1,000
    products: the most that the difference of two rates can be. consistent: whether rates and savings can be of one
    configuration (to 1 %).
    """
    saved = (AR_PER_1000 - HPD_PER_1000) * DOCUMENTS / 1000
    return {
        "source": "arXiv 2604.26209",
        "model": "Qwen3-32B",
        "hosted": "GPT-4.1",
        "documents": DOCUMENTS,
        "ar_per_1000": AR_PER_1000,
        "hpd_per_1000": HPD_PER_1000,
        "ratio": AR_PER_1000 / HPD_PER_1000,
        "saved_by_rates": saved,
        "stated_saving_over_ar": SAVED_OVER_AR,
        "stated_saving_over_hosted": SAVED_OVER_HOSTED,
        "rate_of_saving_over_ar": SAVED_OVER_AR / DOCUMENTS * 1000,
        "rate_of_saving_over_hosted": SAVED_OVER_HOSTED / DOCUMENTS * 1000,
        "consistent": abs(saved / SAVED_OVER_AR - 1) < 0.01,
    }
