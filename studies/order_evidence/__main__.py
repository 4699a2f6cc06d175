"""Compare objectives over all ordered pairs with those of other libraries, on held-out rows.

    python -m studies.order_evidence ranking     XGBoost by a real target, about 30 minutes
    python -m studies.order_evidence survival    linear and XGBoost, beside Cox, about 8 minutes
    python -m studies.order_evidence report      write the tables of the docs from the rows

`survival` needs scikit-survival, which has the data. The rows are in studies/rows/order.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchmarks.rows import environment, write_csv
from studies.order_evidence import report

COLUMNS = ("machine", "everypair", "commit", "date")


def write(results: Iterator[Any], name: str) -> None:
    """Write the rows after each result, so that an interrupted run leaves what it has measured."""
    from xgboost import __version__ as xgboost

    origin = {column: environment()[column] for column in COLUMNS} | {"xgboost": xgboost}
    rows: list[dict[str, object]] = []
    for result in results:
        values = {k: round(v, 6) if isinstance(v, float) else v for k, v in asdict(result).items()}
        rows.append({**values, **origin})
        write_csv(rows, report.FOLDER / f"{name}.csv")
        print(result)


def main() -> None:
    parser = argparse.ArgumentParser("python -m studies.order_evidence")
    parser.add_argument("command", choices=["ranking", "survival", "report"])
    command = parser.parse_args().command
    if command == "report":
        print(report.fill())
    elif command == "ranking":
        from studies.order_evidence import ranking

        write(ranking.run(), command)
    else:
        from studies.order_evidence import survival

        write(survival.run(), command)


if __name__ == "__main__":
    main()
