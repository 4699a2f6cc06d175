"""Research on when pairs are worth it: scripts, their rows, and the tables made from them.

Not part of the package and not needed to change it. Each script has its commands in its docstring;
`README.md` lists them. Imports `benchmarks` for rows and pages, and public names of the package.
"""

from pathlib import Path

ROWS = Path(__file__).resolve().parent / "rows"
