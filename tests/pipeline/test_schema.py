from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.job import JobError
from pipeline.schema import conform, plain, unify

STRING_DICTIONARY = pa.dictionary(pa.int32(), pa.string())


def unified(*types: pa.DataType) -> pa.DataType:
    return unify((f"/in/{i}.parquet", pa.schema([("c", t)])) for i, t in enumerate(types)).field("c").type


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([pa.null(), pa.string()], pa.string()),
        ([pa.string(), pa.null()], pa.string()),
        ([pa.string(), pa.large_string(), STRING_DICTIONARY], pa.large_string()),
        ([pa.string(), STRING_DICTIONARY], pa.string()),
        ([pa.string_view(), pa.null()], pa.string_view()),
        ([pa.string_view(), pa.string()], pa.large_string()),
        ([pa.list_(pa.large_string()), pa.list_(pa.string_view())], pa.list_(pa.large_string())),
        ([pa.binary(), pa.large_binary(), pa.binary_view()], pa.large_binary()),
        ([STRING_DICTIONARY], pa.string()),
        ([pa.null(), pa.null()], pa.null()),
        ([pa.list_(pa.null()), pa.list_(pa.string())], pa.list_(pa.string())),
        ([pa.list_(pa.string()), pa.large_list(STRING_DICTIONARY)], pa.large_list(pa.string())),
        (
            [pa.struct([("a", pa.null())]), pa.struct([("a", pa.large_string())])],
            pa.struct([("a", pa.large_string())]),
        ),
        ([pa.map_(pa.string(), pa.null()), pa.map_(pa.string(), pa.int8())], pa.map_(pa.string(), pa.int8())),
        ([pa.timestamp("ns", "UTC"), pa.null()], pa.timestamp("ns", "UTC")),
    ],
)
def test_types_that_mean_the_same_become_one(types: list[pa.DataType], expected: pa.DataType) -> None:
    assert unified(*types) == expected
    assert unified(*types, *types) == expected


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (pa.int64(), pa.string()),
        (pa.int32(), pa.int64()),
        (pa.timestamp("ns"), pa.timestamp("ns", "UTC")),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
        (pa.list_(pa.int8()), pa.list_(pa.string())),
    ],
)
def test_a_clash_names_the_column_both_files_and_both_types(a: pa.DataType, b: pa.DataType) -> None:
    with pytest.raises(JobError) as e:
        unified(pa.null(), a, a, b)
    message = str(e.value)
    assert "'c'" in message and "/in/1.parquet" in message and "/in/3.parquet" in message
    assert str(a) in message and str(b) in message


def test_columns_keep_the_order_of_first_appearance_and_a_missing_one_is_null() -> None:
    first = pa.schema([pa.field("b", pa.int8(), nullable=False), ("a", pa.string())])
    second = pa.schema([("z", pa.bool_()), ("a", pa.string())])
    schema = unify([("1", first), ("2", second)])
    assert schema.names == ["b", "a", "z"]
    assert schema.field("b").nullable
    table = conform(pa.table({"z": [True], "a": ["x"]}), schema)
    assert table.to_pylist() == [{"b": None, "a": "x", "z": True}] and table.schema == schema


def test_a_column_that_never_lacks_stays_not_nullable() -> None:
    schema = pa.schema([pa.field("b", pa.int8(), nullable=False)])
    assert not unify([("1", schema), ("2", schema)]).field("b").nullable


def test_a_column_that_stands_twice_is_named() -> None:
    with pytest.raises(JobError, match="'a' stands twice in /in/x"):
        unify([("/in/x", pa.schema([("a", pa.int8()), ("b", pa.int8()), ("a", pa.int8())]))])


def test_values_survive_the_cast() -> None:
    nested = pa.struct([("tags", pa.list_(STRING_DICTIONARY)), ("n", pa.null())])
    tags = pa.ListArray.from_arrays(
        pa.array([0, 3, None, 3, 3], pa.int32()), pa.array(["x", None, "y"]).dictionary_encode()
    )
    struct = pa.StructArray.from_arrays(
        [tags, pa.nulls(4)], fields=list(nested), mask=pa.array([False, True, False, False])
    )
    want = pa.schema([("s", pa.struct([("tags", pa.list_(pa.string())), ("n", pa.int64())]))])
    out = conform(pa.table({"s": struct}), want)
    assert out.schema == want
    values = [{"tags": ["x", None, "y"], "n": None}, None, {"tags": None, "n": None}, {"tags": [], "n": None}]
    assert out.column("s").to_pylist() == values


def test_plain_reaches_into_every_nesting() -> None:
    deep = pa.map_(pa.string(), pa.list_(pa.struct([("d", STRING_DICTIONARY)]), 2))
    assert plain(deep) == pa.map_(pa.string(), pa.list_(pa.struct([("d", pa.string())]), 2))
    assert plain(pa.large_list(pa.int8())) == pa.large_list(pa.int8())
