"""Tables of names, entries from a user's file, and the public names of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from everypair import experiments
from everypair.experiments.errors import UserError
from everypair.experiments.registry import EXTENSIONS, Registry, load_extensions


@pytest.fixture
def colours():
    return Registry("colour", {"red": 1, "green": 2})


@pytest.fixture
def extension(tmp_path, monkeypatch):
    """Return a function that writes a Python file and lists it in EVERYPAIR_EXTENSIONS."""
    written = []

    def write(name, text):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        monkeypatch.setenv(EXTENSIONS, f" {path}, ")
        written.append(name)
        return path

    yield write
    for name in written:
        sys.modules.pop(name, None)


def test_behaves_like_a_dictionary(colours):
    colours["blue"] = 3
    del colours["red"]
    assert dict(colours) == {"green": 2, "blue": 3}
    assert len(colours) == 2
    assert "red" not in colours
    assert colours.get("red") is None
    with pytest.raises(KeyError):
        colours["red"]


def test_an_unknown_name_lists_the_known_ones(colours):
    with pytest.raises(UserError, match=r"one of red, green; got 'gren'\. Did you mean green\?"):
        colours.find("gren")
    with pytest.raises(UserError, match=r"got 'x'\.$"):
        colours.find("x")


def test_an_extension_file_is_imported_once(extension):
    extension(
        "my_losses",
        "from everypair.experiments import DISPLAY_NAMES, OBJECTIVES, Objective, pairs\n"
        "count = globals().get('count', 0) + 1\n"
        "assert 'square' in OBJECTIVES\n"
        "OBJECTIVES['mine'] = Objective(pairs('huber_hinge'))\n"
        "DISPLAY_NAMES['mine'] = 'my own'\n",
    )
    from everypair.experiments import DISPLAY_NAMES, OBJECTIVES
    from everypair.experiments.display_names import display_name

    try:
        assert display_name("mine") == "my own"
        load_extensions()
        assert sys.modules["my_losses"].count == 1
    finally:
        del OBJECTIVES["mine"], DISPLAY_NAMES["mine"]


def test_an_extension_may_be_a_module(tmp_path, monkeypatch, colours):
    (tmp_path / "my_module_of_colours.py").write_text("colour = 'red'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(EXTENSIONS, "my_module_of_colours")
    assert len(colours) == 2
    assert sys.modules.pop("my_module_of_colours").colour == "red"


@pytest.mark.parametrize("name", ["no_such_file.py", "no_such_module"])
def test_a_missing_extension_raises_a_user_error(name, monkeypatch, colours):
    monkeypatch.setenv(EXTENSIONS, name)
    with pytest.raises(UserError, match=rf"{EXTENSIONS} must name .* {name!r} cannot be imported"):
        list(colours)


def test_an_extension_that_fails_is_not_left_in_sys_modules(extension, colours):
    extension("my_failure", "1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        list(colours)
    assert "my_failure" not in sys.modules


def test_every_public_name_exists_and_is_documented():
    assert len(set(experiments.__all__)) == len(experiments.__all__)
    assert set(experiments.__all__) == set(experiments._SOURCE)
    assert set(experiments.__all__) <= set(dir(experiments))
    for name in experiments.__all__:
        assert getattr(experiments, name).__doc__, f"{name} has no docstring"
        assert f"`{name}`" in experiments.__doc__
    with pytest.raises(AttributeError, match="no attribute 'objective'"):
        experiments.objective  # noqa: B018


def test_importing_the_package_does_not_import_torch():
    program = "import sys, everypair.experiments; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
