"""A user's table: files that are read, columns that are encoded, and error messages."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pandas as pd
import pytest

from everypair.experiments.data import _tables, sources
from everypair.experiments.data._encoder import CLIP, TableEncoder
from everypair.experiments.errors import UserError
from everypair.experiments.plan import TableFile

GOOD = "age,town,fraud\n20,A,0\n30,B,1\n40,B,0\n"


def written(tmp_path, text, name="my.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("comma.csv", GOOD.encode()),
        ("semicolon.csv", GOOD.replace(",", ";").encode()),
        ("tab.txt", GOOD.replace(",", "\t").encode()),
        ("excel.csv", b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()),
        ("packed.csv.gz", gzip.compress(GOOD.encode(), mtime=0)),
    ],
)
def test_the_usual_kinds_of_csv_are_read(tmp_path, name, content):
    frame = _tables.read(written(tmp_path, content, name))
    assert list(frame.columns) == ["age", "town", "fraud"]
    assert frame["age"].tolist() == [20, 30, 40]


def test_decimal_commas_are_read_if_semicolons_separate(tmp_path):
    frame = _tables.read(written(tmp_path, "x;y\n1,5;0\n-2,5;1\n"))
    assert frame["x"].tolist() == [1.5, -2.5]


def test_parquet_is_recognised_by_its_content(tmp_path):
    frame = pd.DataFrame({"age": [1.5, 2.5], "fraud": [True, False]}, index=[7, 8])
    path = tmp_path / "called.csv"
    frame.to_parquet(path)
    read = _tables.read(path)
    assert read["age"].tolist() == [1.5, 2.5]
    assert read.index.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("content", "label", "message"),
    [
        (GOOD, "frud", "has no column 'frud'; did you mean 'fraud'?"),
        (GOOD, "zzz", "has no column 'zzz'; it has age, town, fraud"),
        (GOOD, "age", "must hold exactly two values; it holds 3: '20' (1), '30' (1), '40' (1)"),
        ("age,fraud\n1,0\n2,0\n", "fraud", "must hold exactly two values; it holds 1: '0' (2)"),
        ("age,fraud\n1,0\n2,\n3,1\n", "fraud", "is empty in 1 of 3 rows (the first is row 2)"),
        ("", "fraud", "is empty: it has 0 bytes"),
        ("age,fraud\n", "fraud", "is empty: it has no row below its header"),
        ("fraud\n1\n0\n", "fraud", "has no column to learn from besides fraud"),
        ("a,fraud\n1,2,3,4\n1\n1,2,3,4,5\n", "fraud", "is not a CSV or Parquet table"),
        ("a,fraud\n1,0,7\n2,1,8\n", "fraud", "is not a CSV or Parquet table: Length of header"),
        (b"PAR1 and then nothing", "fraud", "is not a CSV or Parquet table"),
        (b"age,fraud\n\xff\xfe,1\n", "fraud", "save it as UTF-8"),
        ("x,x,fraud\n1,2,0\n3,4,1\n", "fraud", "has more than one column 'x'"),
    ],
)
def test_bad_files_give_one_clear_line(tmp_path, content, label, message):
    path = written(tmp_path, content)
    with pytest.raises(UserError, match=re.escape(message)) as refusal:
        sources.load("table", table=TableFile(path, label))
    assert str(refusal.value).startswith(path)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_suggests_a_similar_one(tmp_path):
    written(tmp_path, GOOD, "transactions.csv")
    with pytest.raises(UserError, match=r"no such file\. Did you mean .*transactions\.csv"):
        _tables.read(tmp_path / "transaction.csv")
    with pytest.raises(UserError, match=r"is a folder; name a CSV or Parquet file in it"):
        _tables.read(tmp_path)
    with pytest.raises(UserError, match=r"no such file\.$"):
        _tables.read(tmp_path / "nowhere" / "transaction.csv")


def test_a_table_needs_a_file():
    with pytest.raises(UserError, match="--data FILE --label COLUMN"):
        sources.load("table")


def test_columns_that_share_a_name_are_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "twice.parquet"
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(UserError, match="more than one column 'a'"):
        _tables.read(path)


@pytest.mark.parametrize(
    ("labels", "wanted", "positive"),
    [
        ([0, 1, 1, 1], None, "1"),
        ([-1, 1, 1, 1], None, "1"),
        ([0.0, 1.0, 1.0], None, "1.0"),
        ([True, True, False], None, "True"),
        (["no", "no", "yes"], None, "yes"),
        (["yes", "yes", "no"], None, "yes"),
        (["N", "Y", "Y"], None, "Y"),
        (["ill", "ill", "well"], None, "well"),  # neither word means yes, so the rarer one
        ([1, 2, 1], None, "2"),
        (["a", "b"], None, "b"),
        (pd.Categorical(["a", "b", "a"], ["a", "b", "c"]), None, "b"),
        ([0, 1, 1], "0", "0"),
        ([0.0, 1.0], "0", "0.0"),
        (["Yes", "No"], "yes", "Yes"),
    ],
)
def test_which_value_is_positive(labels, wanted, positive):
    table = TableFile("my.csv", "y", positive=wanted)
    found, name = _tables.two_classes(pd.Series(labels), table)
    assert name == f"y = {positive}"
    assert found.tolist() == [str(label) == positive for label in labels]


def test_a_positive_value_that_does_not_occur_is_refused():
    with pytest.raises(UserError, match="has no value 'maybe'; it has"):
        _tables.two_classes(pd.Series([0, 1]), TableFile("my.csv", "y", positive="maybe"))


def test_groups_become_numbers_and_are_not_features(tmp_path):
    path = written(tmp_path, "x,day,y\n1,mon,0\n2,tue,1\n3,mon,1\n")
    dataset = sources.load("table", table=TableFile(path, "y", "day"))
    assert dataset.groups.tolist() == [0, 1, 0]
    assert list(dataset.inputs.columns) == ["x"]
    assert dataset.positive_name == "y = 1"
    for wrong, message in (("y", "two columns"), ("dya", "did you mean 'day'")):
        with pytest.raises(UserError, match=message):
            sources.load("table", table=TableFile(path, "y", wrong))
    holes = written(tmp_path, "x,day,y\n1,,0\n2,tue,1\n")
    with pytest.raises(UserError, match=r"'day' must hold a value .* row 1 \(1 such rows\)"):
        sources.load("table", table=TableFile(holes, "y", "day"))


def test_the_fingerprint_depends_on_content_and_column_roles(tmp_path):
    one = written(tmp_path, GOOD, "one.csv")
    same = written(tmp_path, GOOD, "same.csv")
    other = written(tmp_path, GOOD.replace("20", "21"), "other.csv")
    tables = [
        TableFile(one, "fraud"),
        TableFile(same, "fraud"),
        TableFile(other, "fraud"),
        TableFile(one, "fraud", positive="0"),
    ]
    prints = [sources.load("table", table=table).fingerprint for table in tables]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def encoded(values, new=None, **options):
    """Fit on one column; return the encoding of it or of a new one, by feature."""
    encoder = TableEncoder(**options).fit(pd.DataFrame({"x": values, "other": range(len(values))}))
    result = encoder.transform(pd.DataFrame({"x": values if new is None else new, "other": 0}))
    assert result.dtype == np.float32
    return {name: result[:, i].tolist() for i, name in enumerate(encoder.names) if name != "other"}


def test_numbers_are_standardised():
    assert encoded([1.0, 3.0], [5.0, 2.0]) == {"x": [3.0, 0.0]}
    assert encoded([True, False, True, False], [True, False]) == {"x": [1.0, -1.0]}


def test_missing_numbers_become_the_median_with_an_indicator():
    found = encoded([1.0, 2.0, np.nan, 9.0, np.inf], [np.nan, 2.0])
    assert found["x is missing"] == [1.0, 0.0]
    assert found["x"][0] == found["x"][1]  # the median is 2
    assert list(encoded([1.0, 2.0, 3.0], [np.nan])) == ["x"]  # none was missing when fitting


def test_outliers_are_clipped():
    assert encoded([0.0, 1.0], [1e300, -1e300]) == {"x": [CLIP, -CLIP]}
    huge = encoded([1.5e308, -1.5e308, 1e308, -1e308], [1e300])
    assert huge["x"] == pytest.approx([1.0])
    assert encoded([0.0, 1e-300], [1e300]) == {"x": [CLIP]}


def test_a_large_offset_does_not_lose_precision():
    assert encoded([1e15 + 1, 1e15 - 1])["x"] == [1.0, -1.0]


def test_text_becomes_levels_and_unknown_levels_zeros():
    values = ["a"] * 12 + ["b"] * 11 + ["c", "d"]
    assert encoded(values, ["a", "b", "c", "new", None]) == {
        "x = a": [1, 0, 0, 0, 0],
        "x = b": [0, 1, 0, 0, 0],
        "x = (other)": [0, 0, 1, 0, 0],
    }
    assert encoded([*values, None], ["a", None])["x is missing"] == [0, 1]
    assert list(encoded(values, most_levels=1)) == ["x = a", "x = (other)"]
    assert encoded(pd.Series(values, dtype="category"), ["b"])["x = b"] == [1]
    assert encoded([b"one", b"two"] * 20, [b"two"]) == {"x = b'one'": [0], "x = b'two'": [1]}
    assert encoded([1.0, 3.0], pd.Categorical([5.0])) == {"x": [3.0]}


@pytest.mark.parametrize(
    "values",
    [
        [5.0] * 30,
        [0.1 + 0.2] * 30,
        [np.nan] * 30,
        [None] * 30,
        ["same"] * 30,
        [f"id {i}" for i in range(30)],
    ],
)
def test_columns_without_information_are_dropped(values):
    assert encoded(values) == {}


def test_a_constant_with_missing_values_becomes_an_indicator():
    assert list(encoded([5.0, np.nan, 5.0])) == ["x is missing"]


@pytest.mark.parametrize(
    "values",
    [
        ["2024-01-01", "2024-01-03"],
        ["2024-01-01T00:00:00Z", "2024-01-03T02:00:00+02:00"],
        pd.to_datetime(["2024-01-01", "2024-01-03"]),
        pd.to_timedelta([0, 2], unit="D"),
    ],
)
def test_dates_are_numbers(values):
    assert encoded(values) == {"x": [-1.0, 1.0]}


def test_numeric_text_with_missing_marks_is_numeric():
    values = [str(i) for i in range(40)] + ["?"]
    assert encoded(values, ["?", "20"])["x is missing"] == [1, 0]
    assert encoded([True, False, None] * 10, [True, None])["x is missing"] == [0, 1]


def test_an_encoder_survives_to_dict():
    frame = pd.DataFrame({"a": [1.0, np.nan, 3.0] * 10, "b": ["x", "y", None] * 10, "same": 0})
    encoder = TableEncoder(rare=2).fit(frame)
    again = TableEncoder.from_dict(encoder.to_dict())
    assert again == encoder
    assert encoder.dropped == ("same",)
    assert np.array_equal(again.transform(frame), encoder.transform(frame))


def test_columns_may_be_reordered_but_not_missing():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 5.0], 7: [0, 1]})
    encoder = TableEncoder().fit(frame)
    shuffled = frame[[7, "b", "a"]].assign(more="text")
    assert np.array_equal(encoder.transform(shuffled), encoder.transform(frame))
    with pytest.raises(UserError, match="has no columns b, 7, which"):
        encoder.transform(frame[["a"]])


def test_a_table_without_information_is_refused():
    with pytest.raises(UserError, match="no column to learn from"):
        TableEncoder().fit(pd.DataFrame({"a": [1, 1], "b": ["x", "y"]}))
