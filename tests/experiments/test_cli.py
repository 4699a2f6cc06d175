"""The command line as a whole: help texts, error messages and exit codes."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import typer

from everypair import __version__, cli, get_backend
from everypair.experiments.commands import app
from everypair.experiments.errors import UserError

NAMES = ["experiment", "report", "predict", "timing", "geometry", "evaluate"]


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def raising(monkeypatch, error):
    """Make every command raise this error."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr("everypair.experiments.commands.app", fail)


def test_shows_its_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"everypair {__version__}, {get_backend()}\n"


def test_every_command_is_registered_and_has_help(capsys):
    assert cli.main(["--help"]) == 0
    overview = capsys.readouterr().out
    registered = [command.name for command in app.registered_commands]
    assert registered == NAMES
    for name in registered:
        assert name in overview
        assert cli.main([name, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_every_default(name):
    for parameter in typer.main.get_command(app).commands[name].params:
        shown = isinstance(parameter.show_default, str) or parameter.default is not None
        assert shown or parameter.required, f"{name} {parameter.name} shows no default"


def test_every_option_is_explained(capsys):
    for name in NAMES:
        for parameter in typer.main.get_command(app).commands[name].params:
            assert parameter.help, f"{name} {parameter.name} has no help text"
    assert cli.main(["--help"]) == 0
    assert "--debug" in capsys.readouterr().out


def test_an_unknown_command_or_option_is_a_user_error(capsys):
    for line in (["nonsense"], ["timing", "--nonsense"], ["timing", "--threads", "0"]):
        assert cli.main(line) == 2
        assert "--help" in (text := capsys.readouterr().err) or "-h" in text
        assert "Traceback" not in text


def test_an_invalid_value_is_one_line(capsys):
    assert cli.main(["timing", "--threads", "many"]) == 2
    text = capsys.readouterr().err
    assert text.startswith("everypair: Invalid value for '--threads'")
    assert text.endswith("See: everypair timing --help\n")
    assert text.count("\n") == 1


def test_an_invalid_number_is_shown_for_every_option(capsys):
    checked = set()
    for name in NAMES:
        arguments = {"evaluate": ["file.csv"]}.get(name, [])
        for parameter in typer.main.get_command(app).commands[name].params:
            if getattr(parameter, "min", None) is not None:  # the options that are numbers
                checked.add(option := parameter.opts[0])
                for value in ("few", "-3"):
                    assert cli.main([name, *arguments, f"{option}={value}"]) == 2
                    text = capsys.readouterr().err
                    assert f"'{option}'" in text
                    assert text.count(f"got '{value}'") == 1
    assert checked >= {"--minutes", "--together", "--seeds", "--margin", "--threads", "--limit"}


def test_without_arguments_it_shows_the_help(capsys):
    assert cli.main([]) == 0
    assert "experiment" in capsys.readouterr().out


def test_an_interrupt_inside_a_command_is_one_line(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("everypair.experiments.figures.geometry.geometry", interrupted)
    assert cli.main(["geometry", "--json"]) == 130
    assert capsys.readouterr().err == "everypair: interrupted.\n"


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_an_interrupt_that_python_ignored_is_repeated(monkeypatch, capsys):
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


def test_a_user_error_is_one_line_and_code_2(monkeypatch, capsys):
    raising(monkeypatch, UserError("my.csv is\nempty"))
    assert cli.main([]) == 2
    assert capsys.readouterr() == ("", "everypair: my.csv is empty\n")


def test_any_other_error_is_one_line_and_code_1(monkeypatch, capsys):
    raising(monkeypatch, RuntimeError("out of\ncheese"))
    assert cli.main(["evaluate"]) == 1
    said = capsys.readouterr().err
    hint = "(everypair --debug ... shows the traceback)"
    assert said == f"everypair: RuntimeError: out of cheese {hint}\n"


def test_an_error_of_a_file_names_it_and_is_code_2(monkeypatch, capsys):
    raising(monkeypatch, PermissionError(13, "Permission denied", "my.csv"))
    assert cli.main(["evaluate"]) == 2
    assert capsys.readouterr().err.startswith("everypair: my.csv: Permission denied (everypair -")


@pytest.mark.parametrize(
    "command", [["evaluate"], ["experiment"], ["experiment", "--label=x", "--data"], ["report"]]
)
def test_a_name_that_is_too_long_is_code_2(capsys, command):
    assert cli.main([*command, "x" * 300]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2


def test_debug_raises_the_error(monkeypatch):
    raising(monkeypatch, RuntimeError("out of cheese"))
    with pytest.raises(RuntimeError, match="cheese"):
        cli.main(["--debug", "evaluate"])


def test_an_interrupt_is_code_130(monkeypatch, capsys):
    raising(monkeypatch, KeyboardInterrupt())
    assert cli.main([]) == 130
    assert capsys.readouterr().err == "everypair: interrupted.\n"


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (3, 3), ("words", 1)])
def test_exit_codes_are_passed_on(monkeypatch, code, expected):
    raising(monkeypatch, SystemExit(code))
    assert cli.main([]) == expected


def test_without_typer_the_error_names_the_extra():
    ran = run(
        "import sys; sys.modules['typer'] = None; from everypair.cli import main; sys.exit(main())"
    )
    assert ran.returncode == 2
    assert ran.stderr == ("everypair: needs typer. In a checkout: pip install '.[experiments]'\n")


def test_a_package_missing_in_a_command_names_the_extra(monkeypatch, capsys):
    raising(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch.nn"))
    assert cli.main([]) == 2
    assert "needs torch. In a checkout: pip install" in capsys.readouterr().err


def test_a_missing_package_of_no_extra_is_an_error(monkeypatch, capsys):
    raising(monkeypatch, ModuleNotFoundError("No module named 'cheese'", name="cheese"))
    assert cli.main([]) == 1
    assert "cheese" in capsys.readouterr().err


def test_help_does_not_load_heavy_packages():
    ran = run(
        "import sys; from everypair.cli import main; main(['--help']); "
        "heavy = {'torch', 'optuna', 'pandas', 'matplotlib', 'sklearn', 'pyarrow'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    assert ran.returncode == 0, ran.stderr
