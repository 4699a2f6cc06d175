"""Tables of names, and a user's own entries from a file."""

from __future__ import annotations

import sys

import pytest

from everypair.experiments.errors import UserError
from everypair.experiments.registry import EXTENSIONS, Registry, load_extensions


@pytest.fixture
def colours():
    return Registry("colour", {"red": 1, "green": 2})


@pytest.fixture
def extension(tmp_path, monkeypatch):
    """Return a function that writes a file, names it in the environment, and forgets it again."""
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


def test_an_unknown_name_is_told_with_the_known_ones(colours):
    with pytest.raises(UserError, match=r"one of red, green; got 'gren'\. Did you mean green\?"):
        colours.find("gren")
    with pytest.raises(UserError, match=r"got 'x'\.$"):
        colours.find("x")


def test_a_file_of_the_user_adds_entries_once(extension):
    extension(
        "my_losses",
        "from everypair.experiments.training.objectives import OBJECTIVES, Objective, pairs\n"
        "count = globals().get('count', 0) + 1\n"
        "assert 'square' in OBJECTIVES\n"
        "OBJECTIVES['mine'] = Objective(pairs('huber_hinge'))\n"
        "from everypair.experiments.display_names import LABELS\n"
        "LABELS['mine'] = 'my own'\n",
    )
    from everypair.experiments.display_names import LABELS, label
    from everypair.experiments.training.objectives import OBJECTIVES

    try:
        assert label("mine") == "my own"
        load_extensions()
        assert sys.modules["my_losses"].count == 1
    finally:
        del OBJECTIVES["mine"], LABELS["mine"]


def test_a_module_can_be_named_too(tmp_path, monkeypatch, colours):
    (tmp_path / "my_module_of_colours.py").write_text("colour = 'red'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(EXTENSIONS, "my_module_of_colours")
    assert len(colours) == 2
    assert sys.modules.pop("my_module_of_colours").colour == "red"


@pytest.mark.parametrize("name", ["no_such_file.py", "no_such_module"])
def test_an_extension_that_is_not_there_is_the_users_mistake(name, monkeypatch, colours):
    monkeypatch.setenv(EXTENSIONS, name)
    with pytest.raises(UserError, match=rf"{EXTENSIONS} must name .* {name!r} cannot"):
        list(colours)


def test_an_extension_that_fails_leaves_no_half_module(extension, colours):
    extension("my_failure", "1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        list(colours)
    assert "my_failure" not in sys.modules
