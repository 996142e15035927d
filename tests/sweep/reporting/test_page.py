"""The page of an item: whole without any other file, and plain about what its ε covers."""

import base64
import math
from html.parser import HTMLParser

import pytest

from sweep.reporting import write_computed, write_report
from sweep.reporting.page import PRIVACY, setting


class Page(HTMLParser):
    """What a page shows and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tables, self.pictures, self.loaded, self.open = [], 0, [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        fields = dict(attributes)
        self.loaded += [fields[name] for name in ("src", "href", "srcset", "data", "action") if name in fields]
        self.loaded += [tag] if tag in ("script", "link", "iframe", "object") else []
        self.tables += tag == "table"
        self.pictures += [fields["src"]] if tag == "img" else []
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page_of(paths):
    return paths[-1].read_text(encoding="utf-8")


@pytest.mark.parametrize(("item", "tables", "pictures"), [("figure1b", 1, 1), ("table3", 2, 0)])
def test_a_page_carries_all_its_tables_and_pictures(sweep, tmp_path, item, tables, pictures):
    paths = write_report(tmp_path, item=item, title="Made <&>", records=sweep(rates=3), seeds=2, rung=None)
    text = page_of(paths)
    page = Page(text)
    assert page.open == []
    assert (page.tables, len(page.pictures)) == (tables, pictures)
    for picture, path in zip(page.pictures, [path for path in paths if path.suffix == ".png"], strict=True):
        assert base64.b64decode(picture.removeprefix("data:image/png;base64,")) == path.read_bytes()
    assert all(source.startswith("data:") for source in page.loaded)
    assert not any(word in text for word in ("http:", "https:", "url(", "@import"))
    assert "<h1>Made &lt;&amp;&gt;</h1>" in text


def test_a_page_says_what_its_budget_covers_and_gives_the_setting(record, tmp_path):
    records = [record(epsilon=epsilon, optimizer={"name": "adam", "momentum": 0.0}) for epsilon in (4.0, math.inf, 1.0)]
    paths = write_report(tmp_path, item="table1", title="Made", records=records, seeds=1, rung=None)
    shown = Page(page_of(paths)).text
    assert PRIVACY in shown
    assert all(words in PRIVACY for words in ("nominal ε (Theorem 10)", "idealised", "not cover the trained weights"))
    assert shown[shown.index("nominal ε (Theorem 10)") + 1] == "1, 4, ∞"
    assert shown[shown.index("optimizer") + 1] == "name adam"
    assert "seed" not in shown


def test_a_computed_page_has_no_setting_of_trials(tmp_path):
    plan = {"dataset": "cifar10", "sampling_rate": 0.005, "steps": 20_000, "delta": 1e-5, "alpha": 3.0, "epsilon": 1.0}
    _, paths = write_computed(tmp_path, item="table6", title="Made", plans=[plan], r_stars=[0.2349])
    page = Page(page_of(paths))
    assert page.tables == 1 and PRIVACY in page.text
    assert "Setting of the trials" not in page.text


def test_the_setting_lists_what_varies_and_shortens_what_varies_much():
    plans = [
        {"lr": 0.1 * k, "method": "dpsgd", "epsilon": 1.0, "delta": 1e-5, "effective_lr": None} for k in range(1, 21)
    ]
    assert setting(plans) == {
        "lr γ": "20 values from 0.1 to 2",
        "method": "DP-SGD",
        "ε, nominal (Theorem 10) for Algorithm 1": "1",
        "delta δ": "1e-5",
    }
