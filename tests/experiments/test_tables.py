"""A user's table: files that are read, columns that are encoded, and error messages."""

from __future__ import annotations

import gzip
import re
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from everypair.experiments.data import _tables, _values, sources, splits
from everypair.experiments.data._encoder import LINEAR_RANGE, TableEncoder
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
        ("bar.txt", GOOD.replace(",", "|").encode()),
        ("utf16.csv", GOOD.encode("utf-16")),
        ("latin.csv", GOOD.replace("A", "Zürich").encode("cp1252")),
        ("packed.bin", gzip.compress(GOOD.encode(), mtime=0)),
        ("excel.csv", b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()),
        ("packed.csv.gz", gzip.compress(GOOD.encode(), mtime=0)),
    ],
)
def test_the_usual_kinds_of_csv_are_read(tmp_path, name, content):
    frame = _tables.read(written(tmp_path, content, name))
    assert list(frame.columns) == ["age", "town", "fraud"]
    assert frame["age"].tolist() == [20, 30, 40]


def test_text_in_the_encoding_of_windows_is_read(tmp_path):
    frame = _tables.read(written(tmp_path, "town,y\nZürich,1\nköln,0\n".encode("cp1252")))
    assert frame["town"].tolist() == ["Zürich", "köln"]


def test_codes_with_leading_zeros_stay_text(tmp_path):
    frame = _tables.read(written(tmp_path, "code,n,share\n0638,1,0.5\n1204,2,0\n"))
    assert frame["code"].tolist() == ["0638", "1204"]
    assert frame["n"].tolist() == [1, 2]
    assert frame["share"].tolist() == [0.5, 0.0]


def test_the_first_sheet_of_an_excel_file_is_read(tmp_path):
    pytest.importorskip("openpyxl")
    path = tmp_path / "my.xlsx"
    pd.DataFrame({"age": [20, 30], "town": ["A", "B"]}).to_excel(path, index=False)
    assert _tables.read(path)["age"].tolist() == [20, 30]
    pd.DataFrame([["x", "x"], [1, 2]]).to_excel(path, index=False, header=False)
    with pytest.raises(UserError, match="more than one column 'x'"):
        _tables.read(path)


def test_excel_without_openpyxl_says_what_to_install(tmp_path, monkeypatch):
    import zipfile

    path = tmp_path / "my.xlsx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xl/workbook.xml", "")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(UserError, match="pip install openpyxl"):
        _tables.read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("my.csv", GOOD)
    with pytest.raises(UserError, match="is a zip archive; unpack it"):
        _tables.read(path)


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
        ("a,fraud\n1,0,7\n2,1,8\n", "fraud", "its rows have more fields than its first line"),
        ("a,fraud\n1,0\n2,1,8\n", "fraud", "line 3 has 3 fields, where 2 are expected"),
        ("1.5,0\n2.5,1\n", "fraud", "so the file seems to have no header"),
        ("a,y\n1,Yes\n2,yes\n3,no\n", "y", "differ only in capital letters or spaces"),
        ("a,y\n" + "".join(f"1,{k}\n" for k in range(30)), "y", "If it is a quantity, make"),
        (b"PAR1 and then nothing", "fraud", "is not a CSV or Parquet table"),
        (b"age,fraud\n\x00\x01,1\n", "fraud", "is not a table: it is neither text nor"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "fraud", "is an old Excel file (.xls); save it as .xlsx"),
        (b"PK\x03\x04 and then nothing", "fraud", "cannot be read: File is not a zip file"),
        ('[{"age": 20, "fraud": 1}]', "fraud", "is a JSON file; convert it to CSV or Parquet"),
        ("age/fraud\n1/2\n", "fraud", "it has 'age/fraud' only. Columns are separated by"),
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
    with pytest.raises(UserError, match=r"no such file\.$"):
        _tables.read(tmp_path / "clients.csv")
    with pytest.raises(UserError, match=r"is a folder; name a CSV, Parquet or Excel file"):
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
        (["no ", " yes", " yes"], None, " yes"),
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


def test_one_label_against_the_rest():
    table = TableFile("my.csv", "y", positive="b")
    found, name = _tables.two_classes(pd.Series(["a", "b", "c", "b"]), table)
    assert name == "y = b"
    assert found.tolist() == [False, True, False, True]


ROLES = "id,x,z,day,y\n" + "".join(
    f"{k},{(7 * k) % 11},{k % 3},2024-01-{1 + k // 4:02d},{k % 2}\n" for k in range(60)
)


def test_columns_are_dropped_or_chosen(tmp_path):
    path = written(tmp_path, ROLES)
    dataset = sources.load("table", table=TableFile(path, "y", drop=("z",)))
    assert list(dataset.inputs.columns) == ["x", "day"]
    assert dataset.unused == {
        "y": "the label",
        "z": "dropped by --drop",
        "id": "row numbers: 0, 1, 2, ... in the order of the file",
    }
    dataset = sources.load("table", table=TableFile(path, "y", only=("id", "x")))
    assert list(dataset.inputs.columns) == ["id", "x"]
    assert dataset.unused["z"] == "not named by --only"
    for table, message in (
        (TableFile(path, "y", drop=("zz",)), "did you mean|has no column 'zz'"),
        (TableFile(path, "y", drop=("y",)), "the label 'y' cannot be"),
        (TableFile(path, "y", drop=("z",), only=("x",)), "exclude each other"),
        (TableFile(path, "y", "z", time="day"), "--group and --time exclude each other"),
        (TableFile(path, "y", "z", test=path), "--group and --test exclude each other"),
        (TableFile(path, "y", time="day", test=path), "--time and --test exclude each other"),
    ):
        with pytest.raises(UserError, match=message):
            sources.load("table", table=table)


def test_a_split_by_time_goes_from_old_to_new(tmp_path):
    lines = ROLES.splitlines(keepends=True)
    shuffled = lines[0] + "".join(np.random.default_rng(0).permutation(lines[1:]))
    dataset = sources.load(
        "table", table=TableFile(written(tmp_path, shuffled), "y", time="day", drop=("id",))
    )
    parts = splits.split_rows(dataset, imratio=0, seed=0, protocol="corrected")
    times = [dataset.time[rows] for rows in parts]
    assert times[0].max() < times[1].min() <= times[1].max() < times[2].min()
    assert sum(map(len, parts)) == 60
    earlier = splits.split_rows(dataset, imratio=0, seed=2, protocol="corrected")
    assert dataset.time[earlier.test].max() < times[2].max()
    encoder = splits.fit_encoder(dataset, parts.subtrain)
    assert "day" not in encoder.names
    assert "day: Monday" in encoder.names


def test_time_columns_hold_dates_or_numbers(tmp_path):
    path = written(tmp_path, "x,when,y\n1,soon,0\n2,later,1\n")
    with pytest.raises(UserError, match="must hold dates or numbers; got 'soon', 'later'"):
        sources.load("table", table=TableFile(path, "y", time="when"))
    path = written(tmp_path, "x,when,y\n1,2024-01-01,0\n2,,1\n")
    with pytest.raises(UserError, match="none in row 2"):
        sources.load("table", table=TableFile(path, "y", time="when"))


def test_another_file_may_hold_the_test_rows(tmp_path):
    train = written(tmp_path, ROLES)
    test = written(tmp_path, "z,y,day,x\n1,0,2024-02-01,3\n2,1,2024-02-02,4\n", "test.csv")
    table = TableFile(train, "y", test=test)
    dataset = sources.load("table", table=table)
    parts = splits.split(dataset, imratio=0, seed=0, protocol="corrected")
    assert len(parts.test) == 2
    assert len(parts.subtrain) + len(parts.validation) == 60
    other = written(tmp_path, "z,y,x\n1,0,3\n2,1,4\n", "test.csv")
    with pytest.raises(UserError, match="has no column 'day'"):
        sources.load("table", table=TableFile(train, "y", test=other))


def test_unusable_columns_are_named():
    frame = pd.DataFrame({"n": [1.0, 2.0, 3.0] * 10, "t": ["a", "b", "c"] * 10, "m": range(30)})
    encoder = TableEncoder().fit(frame)
    assert encoder.unusable(frame) == {}
    new = pd.DataFrame({"n": ["1", "x"], "t": ["q", "r"], "m": [None, None]})
    assert encoder.unusable(new) == {
        "n": "50.0% of the values cannot be read as numbers and count as missing, for example 'x'",
        "t": "all values did not occur in the training rows, for example 'q'",
        "m": "all values are missing",
    }


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


def test_outliers_keep_their_order_and_come_closer():
    found = encoded([0.0, 1.0], [1e300, 1e200, 5.5, -1e300])["x"]
    assert found[0] > found[1] > found[2] == LINEAR_RANGE
    assert found[3] == -found[0]
    assert found[0] < 1000
    huge = encoded([1.5e308, -1.5e308, 1e308, -1e308], [1e300])
    assert huge["x"] == pytest.approx([1.0])
    assert np.isfinite(encoded([0.0, 1e-300], [1e300])["x"]).all()


def test_outliers_do_not_count_for_the_scale():
    values = np.arange(1000.0)
    clean, dirty = encoded(values, [500.0, 600.0]), encoded([*values, 1e9], [500.0, 600.0])
    assert dirty["x"] == pytest.approx(clean["x"], abs=0.01)
    rare = [0.0] * 999 + [1.0]  # all values but one are equal: that one counts
    assert encoded(rare)["x"][-1] > 10


def test_a_large_offset_does_not_lose_precision():
    assert encoded([1e15 + 1, 1e15 - 1])["x"] == [1.0, -1.0]


def test_float32_and_float64_files_of_a_table_have_the_same_features():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.standard_normal(500), "amount": rng.lognormal(5, 2, 500)})
    small = frame.astype(np.float32)
    encoder, other = TableEncoder().fit(frame), TableEncoder().fit(small)
    assert encoder == other
    assert np.array_equal(encoder.transform(frame), encoder.transform(small))
    text = small.map(lambda x: float(str(x)))  # as a CSV file that is written from float32
    assert np.array_equal(encoder.transform(frame), encoder.transform(text))


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


def test_the_reason_for_a_column_that_is_not_used_is_the_true_one():
    frame = pd.DataFrame(
        {
            "day": ["2024-01-31", "31.12.2023", "01/30/2024"] * 3,
            "huge": [str(10**25 + i) for i in range(9)],
            "x": range(9),
        }
    )
    frame.loc[0, "day"] = "2024-02-01"
    assert TableEncoder().fit(frame).dropped == {
        "day": "dates in several formats; write all of them like 2024-01-31",
        "huge": "numbers that differ only after the 16th digit; write codes as text",
    }


def test_a_constant_with_missing_values_becomes_an_indicator():
    assert list(encoded([5.0, np.nan, 5.0])) == ["x is missing"]


def test_lists_and_records_are_not_used(tmp_path):
    path = tmp_path / "nested.parquet"
    records = {"tags": [["a"], None, ["b"]], "at": [{"x": 1}] * 3}
    pd.DataFrame({"age": [1, 2, 4], "y": [0, 1, 0], **records}).to_parquet(path)
    found = _tables.load(TableFile(str(path), label="y"))
    assert list(found["inputs"]) == ["age"]
    why = "lists or records; write their parts as columns"
    assert found["unused"] == {"y": "the label", "tags": why, "at": why}


@pytest.mark.parametrize(
    "values",
    [
        ["2024-01-01", "2024-01-03"],
        ["2024-01-01T00:00:00Z", "2024-01-03T02:00:00+02:00"],
        ["01.01.2024", "03.01.2024"],
        ["01/01/2024 00:00", "01/03/2024 00:00"],
        ["Jan 01, 2024", "Jan 03, 2024"],
        ["1 January 2024", "3 January 2024"],
        pd.to_datetime(["2024-01-01", "2024-01-03"]),
    ],
)
def test_dates_are_numbers_with_their_weekday(values):
    found = encoded(values)
    assert found.pop("x") == [-1.0, 1.0]
    assert {name: value for name, value in found.items() if any(value)} == {
        "x: Monday": [1.0, 0.0],
        "x: Wednesday": [0.0, 1.0],
    }


def test_dates_give_hour_weekday_and_month():
    found = encoded(["2024-01-01 06:00", "2024-04-02 18:00", None], ["2024-01-01 18:00", None])
    assert found["x: hour (sine)"] == pytest.approx([-1.0, 0.0], abs=1e-6)
    assert found["x: month (cosine)"] == pytest.approx([1.0, 0.0])
    assert found["x: Monday"] == [1.0, 0.0]
    assert found["x is missing"] == [0.0, 1.0]


def test_times_of_day_give_hours():
    found = encoded(["06:00", "18:00", "12:30"], ["12:00", "00:00"])
    assert found["x: hour (cosine)"] == pytest.approx([-1.0, 1.0])
    assert found["x"][0] > found["x"][1]


def test_text_that_reads_as_a_date_in_year_0_is_dropped():
    assert encoded([f"{i:08x}" for i in range(257, 300)]) == {}


def test_durations_are_numbers():
    assert encoded(pd.to_timedelta([0, 2], unit="D")) == {"x": [-1.0, 1.0]}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["$1,234.50", "($3.00)", "-€5"], [1234.5, -3.0, -5.0]),
        (["1,234.00 EUR", "7", "8.5"], [1234.0, 7.0, 8.5]),
        (["1.234,50 €", "12,00 €"], [1234.5, 12.0]),
        (["1.234 €", "999 €"], [1234.0, 999.0]),
        (["CHF 1'000.50", "CHF 2.00"], [1000.5, 2.0]),
        (["1 234,5", "2"], [1234.5, 2.0]),
        (["5 %", "10%"], [5.0, 10.0]),
        (["1.234", "2.5"], [1.234, 2.5]),
    ],
)
def test_amounts_are_numbers(values, expected):
    kind, style = _values.kind_of(pd.Series(values))
    assert kind == "number"
    assert _values.as_numbers(pd.Series(values), style).tolist() == expected


@pytest.mark.parametrize(
    "values", [["192.168.0.1", "10.0.0.1"], ["A12", "B7"], ["0638", "1204"], ["1-2", "3-4"]]
)
def test_codes_are_not_numbers(values):
    assert _values.kind_of(pd.Series(values)) == ("nominal", "")


def test_codes_have_the_same_text_whatever_type_the_file_gives_them():
    codes = ["0638"] * 12 + ["1204"] * 12
    assert encoded(codes, [1204, 638])["x = 1204"] == [1, 0]
    assert encoded(codes, [1204.0, np.nan])["x = 1204"] == [1, 0]


def test_numeric_text_with_missing_marks_is_numeric():
    values = [str(i) for i in range(40)] + ["?"]
    assert encoded(values, ["?", "20"])["x is missing"] == [1, 0]
    assert encoded([True, False, None] * 10, [True, None])["x is missing"] == [0, 1]


def test_an_encoder_survives_to_dict():
    frame = pd.DataFrame({"a": [1.0, np.nan, 3.0] * 10, "b": ["x", "y", None] * 10, "same": 0})
    encoder = TableEncoder(rare=2).fit(frame)
    again = TableEncoder.from_dict(encoder.to_dict())
    assert again == encoder
    assert encoder.dropped == {"same": "all values are equal"}
    assert np.array_equal(again.transform(frame), encoder.transform(frame))


def test_columns_may_be_reordered_but_not_missing():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 5.0], 7: [0, 1]})
    encoder = TableEncoder().fit(frame)
    shuffled = frame[[7, "b", "a"]].assign(more="text")
    assert np.array_equal(encoder.transform(shuffled), encoder.transform(frame))
    with pytest.raises(UserError, match="has no columns b, 7, which"):
        encoder.transform(frame[["a"]])


def test_rows_may_be_any_table_but_not_an_array():
    frame = pd.DataFrame({"age": [20.0, 40.0]})
    encoder = TableEncoder().fit(frame)
    assert encoder.transform(pa.table(frame)).tolist() == encoder.transform(frame).tolist()
    with pytest.raises(UserError, match=r"must be a DataFrame with .* \(age\); got ndarray"):
        encoder.transform(frame.to_numpy())
    with pytest.raises(UserError, match=r"got Series. Of a DataFrame, frame.iloc\[\[0\]\] is one"):
        encoder.transform(frame.iloc[0])


def test_a_table_without_information_is_refused():
    with pytest.raises(UserError, match="no column to learn from"):
        TableEncoder().fit(pd.DataFrame({"a": [1, 1], "b": ["x", "y"]}))
