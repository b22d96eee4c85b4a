"""Prompt texts for endpoints, from the templates that ship."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jinja2


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    # Nothing is escaped: a prompt is no HTML. A name that does not exist is an error.
    return jinja2.Environment(
        loader=jinja2.PackageLoader("jobs", "templates"),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def rendered(template: str, **content: Any) -> str:
    """A prompt text, by the name of its file in `templates`."""
    return _environment().get_template(template).render(**content).strip()
