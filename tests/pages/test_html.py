"""Pages as HTML: what a reader, and a screen reader, finds in them."""

import collections
import re

import pytest

from vit_jax.config import ConfigError
from vit_jax.pages import html, listing
from vit_jax.pages.document import Confusion, Picture, Table


def test_rows_without_a_name_belong_to_the_one_before():
    rows = [("a", "1"), ("", "2"), ("b", "3"), ("c", "4")]
    table = Table(header=("name", "n"), rows=rows, highlighted=frozenset({3}))
    assert html._row_kinds(table) == ["open", None, None, "highlighted"]
    assert html._row_kinds(Table(header=("name",), rows=[])) == []


def test_columns_of_numbers_but_the_first_are_set_right():
    table = Table(header=("1", "n", "words"), rows=[("1", "2", "a"), ("3", "4.5", "5")])
    kinds = re.findall(r"<t[hd]( [^>]*)?>", str(html._table(table)))
    assert ['class="n"' in kind for kind in kinds] == 3 * [False, True, False]


def test_a_picture_has_its_name_and_its_width():
    """At 150 dots per inch, two thirds of its pixels."""
    png = bytes(16) + (300).to_bytes(4) + bytes(9)
    drawn = str(html._picture(Picture(png=png, path="a <b>.png", caption="said")))
    assert re.search(r'alt="a &lt;b&gt;.png"', drawn)
    assert 'width="200"' in drawn


def test_the_commonest_mistakes_are_ten():
    counts = collections.Counter({("a", str(k)): k for k in range(1, 13)} | {("a", "a"): 99})
    found = Confusion(classes=("a",), counts=counts).commonest()
    assert list(found.rows) == [("a", str(k), str(k)) for k in range(12, 2, -1)]


def test_a_model_that_no_config_has(monkeypatch):
    known = {"digits": listing.catalog.names()["digits"]}  # all of them take a second
    monkeypatch.setattr(listing.catalog, "names", lambda: known)
    with pytest.raises(ConfigError, match="^--model=ViT-Q: no name has such a model; known: "):
        listing.entries(model="ViT-Q")


def test_tables_of_the_paper_are_in_its_order():
    about = listing.catalog.About(row="row", tables=("10", "section 4.6", "2"))
    (line,) = (line for line in listing.notes(about) if line.startswith("source: "))
    assert line == "source: row; table 2, table 10, section 4.6"
