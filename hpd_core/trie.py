"""A closed attribute's values as a trie of token ids: a slot writes one of them, or that the document names none.

Each value is cut into ids as a model is taught to write it, so that after its first ids there is mostly one way on. The
terminator is part of the trie: where nothing else may follow, it is as forced as any other id.

A value may be spelled in any letter case under which it is read as the same listed one (see `reading.typed_value`): a
model copies what its document says, and should not have to choose another value for a capital letter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

from hpd_core.lines import LineEncoder, PromptError
from hpd_core.reading import typed_value
from hpd_core.schema import SEPARATOR, Attribute


class Node(dict[int, "Node"]):
    """{id: where it leads}; empty behind a terminator."""


class TokenTrie:
    """The ids that keep a value on its list; a constraint like `constraint.CopyConstraint`, but of ids, not of bytes.

    terminators: ids that end a value and write nothing, any of which may stand for the one of the trie where there is a
    choice: a model that was not fine-tuned may end its answer with an end-of-text.
    """

    #: An id that is the only one allowed needs no forward pass and is no choice of the model's.
    may_force: ClassVar[bool] = True

    def __init__(self, root: Node, terminators: Collection[int]) -> None:
        self._root = root
        self._terminators = frozenset(terminators)

    def __call__(self, ids: Sequence[int], /) -> tuple[int, ...]:
        """Ids that may follow `ids`, ascending; the terminators behind ids that are no beginning of a value."""
        node = self._root
        for i in ids:
            node = node.get(i, Node())
        if len(node) == 1:
            return tuple(node)
        bare = not node or any(not node[i] for i in node.keys() & self._terminators)
        return tuple(sorted({*node, *self._terminators} if bare else node))


class LongValue(NamedTuple):
    """A listed value that takes more `tokens`, its terminator counted, than a value may have."""

    attribute: str
    value: str
    tokens: int


def long_values(attribute: Attribute, lines: LineEncoder, max_value_tokens: int) -> list[LongValue]:
    """The values of a closed attribute that could never be written whole."""
    lengths = ((value, len(lines.value(attribute, f" {value}\n"))) for value in attribute.values)
    return [LongValue(attribute.name, value, n) for value, n in lengths if n > max_value_tokens]


def spellings(attribute: Attribute, value: str) -> list[str]:
    """`value`, and it in other letter cases, as far as each is read as this value."""
    read_as = typed_value(attribute, value)
    forms = (value, value.lower(), value.upper(), value.capitalize(), value.title())
    return [form for form in dict.fromkeys(forms) if typed_value(attribute, form) == read_as]


def value_trie(
    attribute: Attribute, absent: str, lines: LineEncoder, terminators: Collection[int], max_value_tokens: int
) -> TokenTrie:
    """The trie of a closed attribute. absent: the text for "the document does not say", "" for the bare terminator.

    Of an attribute with many values each may be followed by the separator and any other.
    Raises PromptError where a value does not fit into `max_value_tokens`: it could never be written whole.
    """
    root, later = Node(), Node()
    insert(root, lines.value(attribute, f" {absent}\n") if absent else (lines.newline_id,), Node())
    for value in attribute.values:
        for form in spellings(attribute, value):
            whole = lines.value(attribute, f" {form}\n")
            if len(whole) <= max_value_tokens:
                insert(root, whole, Node())
            elif form == value:
                raise PromptError(
                    f"closed value {value!r} of {attribute.name!r} takes {len(whole)} tokens, its terminator counted: "
                    f"max_value_tokens is {max_value_tokens}"
                )
            if attribute.many:
                more, before = f" {form}{SEPARATOR}", f" x{SEPARATOR}"
                insert(root, lines.value(attribute, more, after=" x\n"), later)
                insert(later, lines.value(attribute, more, before, " x\n"), later)
                insert(later, lines.value(attribute, f" {form}\n", before), Node())
    return TokenTrie(root, terminators)


def insert(node: Node, ids: Sequence[int], end: Node) -> None:
    """Adds the way `ids` from `node` to `end`; what is there already stays."""
    for i in ids[:-1]:
        node = node.setdefault(i, Node())
    node.setdefault(ids[-1], end)
