"""The generated pages hold every option, config, command, component, error and public name."""

import re
import subprocess
import sys

import pytest

import documents
import runs
from vit_jax import config
from vit_jax.utils import errors

sys.path.insert(0, str(runs.ROOT / "docs" / "site"))
import code_blocks  # in docs/site, beside the hooks of the site
import reference


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    reference.write(folder)
    return {path.stem: path.read_text() for path in folder.rglob("*.md")}


def rows(text):
    """The cells of the first columns of all tables."""
    return [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]


@pytest.mark.slow
def test_every_option_has_type_default_and_meaning(pages):
    found = {
        row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows(pages["options"])
    }
    assert list(found) == [key for key, _, _ in config.declared()]
    for key, field, _ in config.declared():
        kind, default, meaning = found[key]
        assert kind
        assert default.strip("`").lower() == config.show(field.default).lower()
        assert field.metadata["doc"].replace("|", "&#124;") in meaning
    assert found["optimizer.momentum"][-1].startswith("`sgd`, `lars`: ")


def test_every_error_has_its_exit_code(pages):
    found = {row[0].strip(" `"): int(row[1]) for row in rows(pages["errors"])}

    def below(cls):
        for child in cls.__subclasses__():
            yield child
            yield from below(child)

    ours = [c for c in below(errors.UserError) if c.__module__.startswith("vit_jax.")]
    for cls in ours:
        if not cls.__name__.startswith("_"):
            assert found[f"{cls.__module__}.{cls.__qualname__}"] == cls.exit_code
    assert set(found.values()) <= set(reference.exit_codes())
    page = (runs.ROOT / "docs" / "devices.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == set(
        reference.exit_codes()
    )


def shell(text):
    """The commands of a page's blocks."""
    blocks = [found for found in documents.FENCE.finditer(text) if found[2] in ("sh", "bash")]
    lines = ["\n".join(one.removeprefix(b[1]) for one in b[3].splitlines()) for b in blocks]
    return [
        command
        for text in lines
        for command in documents.commands(documents.Block("", 0, "sh", text))
    ]


def code(text):
    """Yields the lines of the shell and Python blocks of a page."""
    for found in documents.FENCE.finditer(text):
        if found[2] in ("sh", "bash", "python"):
            yield from found[3].splitlines()


@pytest.mark.parametrize("page", documents.PAGES, ids=lambda page: page.stem)
def test_code_fits_the_column_of_the_site_and_says_the_same(page):
    text = page.read_text()
    fitted = code_blocks.fit(text)
    assert shell(fitted) == shell(text)
    said = [" ".join(re.findall(r"(?:^|\s)# (.*)$", line)) for line in code(fitted)]
    for line in code(text):
        if found := code_blocks.TRAILING.match(line):
            assert found["comment"] in " ".join(filter(None, said))
    wide = [line for line in code(fitted) if len(line) > code_blocks.WIDTH]
    # An argument is not broken: the block scrolls, and shows that it does.
    assert [line for line in wide if len(code_blocks.WORD.findall(line)) > 1] == []


def test_a_comment_goes_above_the_whole_command_it_explains():
    line = "vit_jax train digits --config.a=1 \\\n" + "  --b='# no'" + " " * 60 + "# why of it\n"
    assert code_blocks.fit(f"```sh\n{line}```") == (
        "```sh\n# why of it\nvit_jax train digits --config.a=1 \\\n  --b='# no'\n```"
    )


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_a_network(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={tmp_path}"]
    done = subprocess.run(command, cwd=runs.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    for page in pages:
        text = page.read_text()
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", text):
            assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag), f"{page}: {tag}"
