"""The page by itself, and in a browser where there is one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from everypair.experiments import report
from everypair.experiments.plan import Settings, TableFile
from everypair.experiments.report import panels
from everypair.experiments.report.page import page
from tests.experiments import made_up

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VOID = {"meta", "input"}


class Reader(HTMLParser):
    """Keep every element with its attributes and own text; complain about crossed tags."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append({"tag": tag, "text": "", **dict(attributes)})
        if tag not in VOID:
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag, attributes):
        self.elements.append({"tag": tag, "text": "", **dict(attributes)})

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag=None, **wanted):
        return [
            element
            for element in self.elements
            if tag in (None, element["tag"])
            and all(value in (element.get(k) or "").split() for k, value in wanted.items())
        ]


def study(records, settings=None, **more):
    return report.study_of(records, settings or Settings(), **more)


@pytest.fixture(scope="module")
def few():
    return study(made_up.records(made_up.grid(), epochs=5))


@pytest.fixture(scope="module")
def text(few):
    return page(few)


@pytest.fixture(scope="module")
def read(text):
    return Reader(text)


def test_asks_nothing_of_the_network(text, read):
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"^\s*//.*$", "", text, flags=re.M))
    assert not any(element.get("src") for element in read.elements)
    assert all(element["href"].startswith("#") for element in read.all() if element.get("href"))
    assert "@import" not in text
    assert "url(" not in text


def test_headings_captions_and_names_are_there(read):
    assert len(read.all("h1")) == 1
    assert len(read.all("caption")) == len(read.all("table"))
    assert all(head.get("scope") for head in read.all("th"))
    assert all(image.get("aria-label") for image in read.all(role="img"))
    ids = [element["id"] for element in read.all() if element.get("id")]
    assert len(ids) == len(set(ids))
    targets = {element["href"][1:] for element in read.all("a")}
    assert targets <= set(ids)
    assert {element.get("for") for element in read.all("label")} <= set(ids)


def test_everything_that_scrolls_can_be_reached(read):
    regions = read.all(**{"class": "scroll"})
    assert regions
    assert all(r["role"] == "region" and r["tabindex"] == "0" and r["aria-label"] for r in regions)


def test_the_numbers_are_in_the_tables(few, read):
    cells = {cell["text"] for cell in read.all("td")}
    for summary in few.summed:
        assert f"{summary.mean:.3f} ± {summary.sd:.3f}" in cells
    verdicts = [element["text"] for element in read.all("p", **{"class": "verdict"})]
    assert len(verdicts) == 2
    assert any("tie" in text for text in verdicts)


def test_plots_carry_their_numbers(few, read):
    found = [json.loads(e["text"]) for e in read.all("script", type="application/json")]
    # AUC and loss for each of three losses, and a ROC plot, for each of two imratios.
    assert len(found) == 2 * (3 * 2 + 1)
    lines = found[0]["lines"]
    assert [line["name"] for line in lines] == ["training", "validation"]
    assert len(lines[0]["values"]) == 6
    assert [line["colour"] for line in lines] == ["var(--c0)"] * 2


def test_plots_follow_the_theme_and_keep_their_text(text, read):
    drawn = "".join(re.findall("<svg.*?</svg>", text, flags=re.DOTALL))
    assert not re.search('#[0-9a-f]{6}[;"]', drawn)
    assert {"test AUC", "epoch", "false positive rate"} <= {e["text"] for e in read.all("text")}
    # Test AUC and differences, AUC and loss of three losses, and ROC curves; for two imratios.
    assert len(read.all("svg")) == 2 * (2 + 3 * 2 + 1)


def test_the_page_and_the_figures_have_the_same_colours(text):
    for k, colour in enumerate(panels.COLOURS):
        assert f"--c{k}: {colour}" in text


def test_an_unfinished_grid_has_a_banner(few, read):
    assert not read.all("progress")
    partial = Reader(page(study(few.records, planned=200)))
    [bar] = partial.all("progress")
    assert (bar["value"], bar["max"]) == ("108", "200")


def test_one_seed_gives_no_conclusion():
    shown = page(study(made_up.simple([0.7]) + made_up.simple([0.8], "square")))
    assert "A single seed gives no interval" in shown
    assert "cannot say" in shown


def test_one_contender_and_full_batches_and_odd_histories():
    nan = float("nan")
    records = made_up.simple([0.7, 0.8])
    records[0].history.update(validation_auc=[nan, 0.9], subtrain_loss=[100.0, 0.01])
    records[1].history.update(validation_auc=[0.4, None], subtrain_loss=[3.0, 0.0])
    shown = page(study(records))
    Reader(shown)
    assert "only one loss" in shown
    assert "NaN</" not in shown


def test_names_of_users_are_only_text():
    evil = "<img src=x onerror=alert(1)>.csv"
    records = made_up.simple([0.7, 0.8], loss="<b>bold", data="table")
    records += made_up.simple([0.5, 0.7], data="table")
    table = TableFile(evil, "<i>column", positive='"><script>')
    records[0] = replace(records[0], state="diverged", reason="</script><img src=x>")
    shown = page(study(records, Settings(model="<u>net", table=table)))
    Reader(shown)
    for raw in (evil, "<b>bold", "<i>column", '"><script>', "</script><img", "<u>net"):
        assert raw not in shown
    # Each of them is there as text, also inside the plots.
    assert "&lt;img src=x onerror=alert(1)&gt;.csv" in shown
    assert re.search("<text[^>]*>&lt;b&gt;bold", shown)


# What a reader would do, done by a script inside the page; it leaves what it saw in the title.
ACTIONS = """<script>
const table = document.querySelector("#selected table");
const column = (k) => [...table.tBodies[0].rows].map((row) => row.cells[k].dataset.v);
const before = column(3);
const button = table.tHead.rows[0].cells[3].querySelector("button");
const saw = {};
button.click(); saw.up = column(3); saw.sort = button.parentNode.getAttribute("aria-sort");
button.click(); saw.down = column(3);
button.click(); saw.back = String(column(3)) === String(before);
const plot = document.querySelector(".comparison.shown .plot");
plot.focus();
plot.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true, cancelable: true }));
saw.aloud = document.getElementById("status").textContent;
saw.tip = !document.getElementById("tip").hidden;
document.querySelectorAll(".picker input")[1].click();
saw.shown = [...document.querySelectorAll(".comparison.shown")].map((one) => one.id);
const paper = () => getComputedStyle(document.body).backgroundColor;
saw.light = paper(); document.getElementById("theme").click(); saw.dark = paper();
saw.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
document.title = JSON.stringify(saw);
</script></body>"""


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    """A function that opens a page in headless Chromium and returns what it prints."""
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    if binary is None:
        pytest.skip(f"no browser here: none of {', '.join(BROWSERS)} is on PATH")

    def run(path, *flags):
        profile = tmp_path_factory.mktemp("profile")  # the page remembers a reader's theme in it
        command = [binary, "--headless", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        command += ["--disable-dev-shm-usage", f"--user-data-dir={profile}", *flags]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to start for root otherwise
        done = subprocess.run(
            [*command, path.as_uri()], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    return run


def test_a_browser_sorts_points_picks_and_darkens(text, browse, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(text.replace("</body>", ACTIONS), encoding="utf-8")
    dom = browse(path, "--dump-dom", "--window-size=500,900")
    saw = json.loads(unescape(re.search("<title>(.*)</title>", dom)[1]))
    assert saw["up"] == sorted(saw["up"], key=float)
    assert saw["down"] == saw["up"][::-1]
    assert saw["sort"] == "ascending"
    assert saw["back"]
    assert saw["tip"]
    assert re.fullmatch(r"epoch 5, training [\d.]+, validation [\d.]+", saw["aloud"])
    assert saw["shown"] == ["comparison-1"]
    assert saw["light"] != saw["dark"]
    assert saw["overflow"] == 0  # tables scroll by themselves, the page does not


def test_a_screenshot_shows_a_page(text, browse, tmp_path):
    from PIL import Image

    path, picture = tmp_path / "report.html", tmp_path / "page.png"
    path.write_text(text, encoding="utf-8")
    browse(path, f"--screenshot={picture}", "--window-size=1200,1600")
    with Image.open(picture) as image:
        assert image.size == (1200, 1600)
        colours = image.convert("RGB").getcolors(maxcolors=1 << 24)
        assert len(colours) > 100
        drawn = {colour for _, colour in colours}
    for loss in ("#0b6bb8", "#c2570c", "#0f8a6d"):
        assert tuple(bytes.fromhex(loss[1:])) in drawn, f"no dot in {loss}"
