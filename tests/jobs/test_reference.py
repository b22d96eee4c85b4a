"""docs/configuration.md is what the models say, and says something of every key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from jobs.reference import SECTIONS, Section, explained, keys, page
from pipeline.config import JobConfig


def test_the_committed_page_is_current(repository: Path) -> None:
    committed = (repository / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == page(), "run `python -m jobs.reference > docs/configuration.md`"


def test_every_section_of_a_job_has_a_table() -> None:
    assert set(JobConfig.model_fields) <= {section.title for section in SECTIONS}


def test_a_key_that_no_docstring_explains_is_named() -> None:
    class Silent(BaseModel):
        """told: this one."""

        told: int = 1
        untold: int = 2

    with pytest.raises(LookupError, match="Silent: its docstring does not explain untold"):
        keys(Section("silent", Silent))


def test_several_keys_may_share_an_explanation_and_one_may_follow_another_on_a_line() -> None:
    @dataclass
    class Told:
        """What it is.

        first, second: bounds of it. third: see first: it is
            not a key here.
        """

        first: int = 0
        second: int = 0
        third: str = ""

    told = explained(Told)

    assert told == {"first": "bounds of it.", "second": "bounds of it.", "third": "see first: it is not a key here."}
