"""Whether two Arrow columns hold the same values, and where they differ first. Floats are compared bit by bit: a NaN is
a NaN, null is not, and 0.0 is not -0.0."""

from __future__ import annotations

import pyarrow as pa

from pipeline.schema import replaced

_INTEGERS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}
_SHOWN = 80


def first_difference(a: pa.Array, b: pa.Array) -> int | None:
    """Index of the first value in which two arrays of one type and length differ, None where they are equal."""
    if a.type != b.type or len(a) != len(b):
        raise ValueError(f"{len(a)} values of {a.type} cannot be compared with {len(b)} of {b.type}")
    if isinstance(a.type, pa.BaseExtensionType):
        a, b = a.storage, b.storage
    bits = replaced(a.type, _INTEGERS)
    if bits != a.type:
        a, b = a.view(bits), b.view(bits)
    if a.equals(b):
        return None
    equal, different = 0, len(a)  # the first `equal` values are the same, the first `different` are not
    while different - equal > 1:
        middle = (equal + different) // 2
        if a.slice(equal, middle - equal).equals(b.slice(equal, middle - equal)):
            equal = middle
        else:
            different = middle
    return equal


def shown(scalar: pa.Scalar) -> str:
    """A value for people, cut to one short line; what Python cannot hold (no UTF-8, the year 20000) as Arrow has it."""
    try:
        text = repr(scalar.as_py())
    except (ValueError, OverflowError, pa.ArrowException):
        try:
            text = repr(scalar.as_buffer().to_pybytes())
        except AttributeError:
            text = f"a {scalar.type} that Python cannot hold"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
