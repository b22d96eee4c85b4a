"""docs/models.md says what the matrix tests."""

from __future__ import annotations

from tests.core.support_table import PAGE, current


def test_the_page_has_the_tables_of_the_matrix():
    """Run `python -m tests.core.support_table` after a change of the matrix."""
    assert PAGE.read_text(encoding="utf-8") == current()
