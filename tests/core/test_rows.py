from __future__ import annotations

import pytest

from hpd_core.rows import Counts, Row, RowStatus
from hpd_core.schema import Attribute, Schema

OPEN = Attribute("Name")


def test_a_row_with_a_value_missing_is_refused():
    with pytest.raises(ValueError, match="0 values for the 1 attributes"):
        Row(Schema("s", (OPEN,)), RowStatus.OK)


def test_counts_merge():
    total = Counts(steps=1, prefill_seconds=0.5)
    total += Counts(steps=2, prefill_seconds=0.25, documents=3)
    assert (total.steps, total.prefill_seconds, total.documents) == (3, 0.75, 3)
    assert set(total.as_dict()) >= {"model_calls", "cached_tokens"}
