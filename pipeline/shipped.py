"""The YAML that ships in the package `conf`, and the loader every YAML file of the project goes through."""

from __future__ import annotations

import re
from collections.abc import Hashable
from importlib.resources import files
from typing import Any

import yaml


class YamlError(ValueError):
    """YAML that does not parse or says something twice."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            # Keys that `<<` merges in may be overridden: only what is written out here counts.
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                continue
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} stands twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, origin: str) -> Any:
    """The value of a YAML document; raises `YamlError` that begins with `origin`, names the line, and repeats no text
    of the document but keys: values may be secrets."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}:" if mark else ""
        # Names of aliases and tags are words of the document: of a text that begins with * or !, all of it.
        reason = re.sub(r"(?s)\b(alias|anchor|tag) .*", r"\1", str(getattr(error, "problem", None) or error))
        raise YamlError(f"{origin}:{where} {reason}") from error


def shipped(name: str) -> Any:
    """The parsed content of `conf/<name>`."""
    return parse_yaml(files("conf").joinpath(name).read_text(encoding="utf-8"), f"conf/{name}")
