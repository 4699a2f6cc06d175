"""The command line as a whole: what it lists, and how it fails."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from everypair import __version__, cli
from everypair.experiments.commands import app
from everypair.experiments.errors import UserError

NAMES = ["experiment", "report", "predict", "timing", "geometry", "evaluate"]


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def raising(monkeypatch, error):
    """Let any command line end in this error."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr("everypair.experiments.commands.app", fail)


def test_says_its_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"everypair {__version__}\n"


def test_every_command_is_registered_and_explained(capsys):
    assert cli.main(["--help"]) == 0
    overview = capsys.readouterr().out
    registered = [command.name for command in app.registered_commands]
    assert registered == NAMES
    for name in registered:
        assert name in overview
        assert cli.main([name, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


def test_an_unknown_command_or_option_is_the_users_mistake(capsys):
    for line in (["nonsense"], ["timing", "--nonsense"], ["timing", "--threads", "0"]):
        assert cli.main(line) == 2
        assert "--help" in (said := capsys.readouterr().err) or "-h" in said
        assert "Traceback" not in said


def test_a_slip_of_the_command_line_is_one_line_too(capsys):
    assert cli.main(["timing", "--threads", "many"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("everypair: Invalid value for '--threads'")
    assert said.endswith("See: everypair timing --help\n")
    assert said.count("\n") == 1


def test_without_a_word_it_explains_itself(capsys):
    assert cli.main([]) == 0
    assert "experiment" in capsys.readouterr().out


def test_an_interrupt_inside_a_command_is_one_line(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("everypair.experiments.figures.geometry.geometry", interrupted)
    assert cli.main(["geometry", "--json"]) == 130
    assert capsys.readouterr().err == "everypair: interrupted.\n"


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_an_interrupt_that_python_ignored_comes_again(monkeypatch, capsys):
    class Deaf:
        def __del__(self):
            raise KeyboardInterrupt

    def swallowing(*_, **__):
        Deaf()
        for _ in range(200):  # the interrupt takes effect between two of these
            time.sleep(0.05)

    monkeypatch.setattr("everypair.experiments.figures.geometry.geometry", swallowing)
    assert cli.main(["geometry", "--json"]) == 130
    assert capsys.readouterr().err == "everypair: interrupted.\n"


def test_a_mistake_is_one_line_and_code_2(monkeypatch, capsys):
    raising(monkeypatch, UserError("my.csv is\nempty"))
    assert cli.main([]) == 2
    assert capsys.readouterr() == ("", "everypair: my.csv is empty\n")


def test_anything_else_is_one_line_and_code_1(monkeypatch, capsys):
    raising(monkeypatch, RuntimeError("out of\ncheese"))
    assert cli.main(["evaluate"]) == 1
    said = capsys.readouterr().err
    assert said == "everypair: RuntimeError: out of cheese (everypair --debug ... shows where)\n"


def test_debug_lets_the_error_through(monkeypatch):
    raising(monkeypatch, RuntimeError("out of cheese"))
    with pytest.raises(RuntimeError, match="cheese"):
        cli.main(["--debug", "evaluate"])


def test_interrupting_is_code_130(monkeypatch, capsys):
    raising(monkeypatch, KeyboardInterrupt())
    assert cli.main([]) == 130
    assert capsys.readouterr().err == "everypair: interrupted.\n"


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (3, 3), ("words", 1)])
def test_passes_exit_codes_on(monkeypatch, code, expected):
    raising(monkeypatch, SystemExit(code))
    assert cli.main([]) == expected


def test_without_typer_the_extra_is_named():
    ran = run(
        "import sys; sys.modules['typer'] = None; from everypair.cli import main; sys.exit(main())"
    )
    assert ran.returncode == 2
    assert ran.stderr == (
        "everypair: needs typer. Install it with: pip install 'everypair[experiments]'\n"
    )


def test_a_package_missing_in_a_command_names_the_extra(monkeypatch, capsys):
    raising(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch.nn"))
    assert cli.main([]) == 2
    assert "needs torch. Install it with" in capsys.readouterr().err


def test_a_missing_package_that_no_extra_brings_is_a_fault(monkeypatch, capsys):
    raising(monkeypatch, ModuleNotFoundError("No module named 'cheese'", name="cheese"))
    assert cli.main([]) == 1
    assert "cheese" in capsys.readouterr().err


def test_help_loads_nothing_heavy():
    ran = run(
        "import sys; from everypair.cli import main; main(['--help']); "
        "heavy = {'torch', 'optuna', 'pandas', 'matplotlib', 'sklearn', 'pyarrow'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    assert ran.returncode == 0, ran.stderr
