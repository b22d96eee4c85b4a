"""Pages of the documentation: their fenced blocks, the commands in them, and their links."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")


@dataclass(frozen=True)
class Block:
    """language: empty for commands. text: without the indentation of its list."""

    language: str
    text: str

    @property
    def commands(self) -> list[list[str]]:
        """Words of its lines, without comments; a backslash continues a line.

        Raises `ValueError` for a line that begins with `hpd` or `make` and that no shell could read.
        """
        if self.language not in ("", "sh"):
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := _words(line))]


def blocks(page: Path) -> list[Block]:
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE)) for indent, language, text in found]


def links(page: Path) -> set[Path]:
    """Files of the repository that a page links to; those that are generated later are not told apart."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    local = [target.partition("#")[0] for target in _LINK.findall(text) if "://" not in target]
    return {(page.parent / target).resolve() for target in local if target}


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of its headings."""
    heads = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        if line.split()[0] in ("hpd", "make"):
            raise ValueError(f"{error} in the command line: {line}") from error
        return []  # prose with an apostrophe: what a command printed
