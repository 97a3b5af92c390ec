"""README and pages say what the records hold: each number, its commit, a command that runs."""

import argparse
import functools
import importlib
import re
import shlex
import subprocess
import sys

import pytest

import documents
import records
import runs
from vit_jax import cli
from vit_jax.weights import zoo

PAGES = {str(page.relative_to(runs.ROOT)): page for page in documents.PAGES}
# Written from their records: test_findings_records.py compares all.
OTHERS = {"docs/findings.md", "docs/findings_long.md"}
QUANTITY = re.compile(
    r"(?<![\w./^-])\d[\d,.]*\s?(?:%|x\b(?! \d)|times (?:as|the)\b|percent|[kGM]i?B\b|points"
    r"|pixels ±|images/s|images (?:per|a) second|steps/s|[GT]FLOP/s|CPU seconds|seconds|ms\b|µs|s\b"
    r"|min\b|minutes|hours|h\b|days\b|(?:core-|chip-|chip )(?:days|hours)"
    r"|top-?[15]\b|AUROC|AUC\b|mAP\b|mIoU|IoU|F1\b|accuracy|ECE\b|kappa|nats)|(?<=± )[\d.]+"
    r"|(?<![\w./^=-])\d[\d.]*e[-+]?\d+\b|(?<![\w./^=-])\d+\.\d+(?![\w.])"
)
# Numbers in code are options and output; those of versions are no measurements.
NO_QUANTITY = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\b(?:Python|jax|JAX|torch|timm|OpenCV|transformers|libtpu|OpenVINO|CC BY"
    r"|section|arXiv)s? \(?[\d.]+(?: or \d[\d.]*)?"
)
MODEL = re.compile(r"^\| `([\w./+-]+)` \| (.*) \|$", re.MULTILINE)  # a row of README's models
LIMIT = re.compile(r"\bat most [\d.,]+\s[\w%/]+|\b(?:within|to|above) 1e-\d+\b")
HEADING = re.compile(r"^#+ (.*)$")
# What is no measurement: limits, options, definitions, what others have published.
STATED = {
    "CONTRIBUTING.md": ("4 minutes on two quick cores",),
    "README.md": ("16 GiB each", "1e-5 in logits, for every format"),
    "docs/cifar10.md": (
        "3.7 million parameters",
        "80 minutes", "35 to 100 %", "95 % interval", "91.4 % after 200",
        "80 to 88 %",
    ),
    "docs/coming_from.md": ("from 0.3 to 3.33", "from 0.3 to 3.3"),
    "docs/data.md": ("train[:10%]", "64 MiB"),
    "docs/faq.md": ("80 to 90 % on CIFAR-10", "0.5 points off"),
    "docs/gpu.md": ("to 90 % and to 94 %", "989 TFLOP/s"),
    "docs/inspect.md": ("2e-6 over batch sizes",),  # tests/inference
    "docs/limits.md": ("30 s behind", "15 minutes"),
    "docs/metrics.md": ("0.05 and 20", "β = 0.9999"),
    "docs/own_images.md": ("95 % confidence", "near 100 %"),
    "docs/paper.md": (
        "within 2.5 %", "98 % of CIFAR, 90 % of Pets", "99 % of ImageNet", "95 % confidence",
        "95 % interval", "95 % prediction", "half the 95 %", "within 3 points",
        "| 83.5 | 83.6 |", "| 83.8 | 83.91 |", "| 84.5 | 84.62 |", "| 85.1 | 85.12 |",
        "80 % mask token, 10 %", "10 % kept", "at 3 times the pixels", "at 1.25 times the side",
    ),
    "docs/preflight.md": (
        "costs 737 core-days", "at 40 % of", "1 GiB of stack", "100 % here",
        "12.2 and 37.2 hours", "34 and 39 %",
    ),
    "docs/reliability.md": (
        "every 15 s", "after 90 s", "SIGKILL 10 s", "within 5 s and 512 MiB", "files for 20 s",
    ),
    "docs/records/README.md": ("EPYC at 2.6 GHz",),
    "docs/ten_minutes.md": ("3.11 works",),
    "docs/unlabeled.md": (
        "Intervals are 95 %", "well above 0.05", "2 points ahead", "of length 1, times the root",
    ),
    "docs/tpu.md": (  # what preflight prints
        "at 30 % of peak", "26 core-days on v5e", "631 chip hours", "6 core-days",
    ),
    "docs/weights.md": ("64 MiB", "a side 0.1 patches longer"),
}  # fmt: skip


@pytest.mark.parametrize("name", records.names())
def test_every_line_of_a_record_names_its_commit(name):
    """That of the code that made it; of older lines, that which added them (`recorded_at`)."""
    for line in records.lines(name):
        assert ("commit" in line) != ("recorded_at" in line)
        commit = line.get("commit") or line["recorded_at"]
        # One line beside timm was made with changes that were not committed; its page says so.
        assert re.fullmatch(r"[0-9a-f]{12}", commit) or (name, commit[12:]) == ("train", "+")
        assert "recorded_at" in line or line["date"]


def test_the_commits_are_of_this_repository():
    given = {
        (line.get("commit") or line["recorded_at"])[:12]
        for name in records.names()
        for line in records.lines(name)
    }
    git = ["git", "-C", str(runs.ROOT)]
    known = [*git, "cat-file", "--batch-check=%(objecttype)"]
    shallow = [*git, "rev-parse", "--is-shallow-repository"]
    if subprocess.run(shallow, capture_output=True, text=True).stdout.strip() != "false":
        pytest.skip("no whole history here")
    done = subprocess.run(known, input="\n".join(sorted(given)), capture_output=True, text=True)
    assert set(done.stdout.split()) == {"commit"}, done.stdout


@pytest.mark.parametrize("page", records.QUOTED)
def test_a_page_has_the_numbers_of_its_records(page):
    text = one_line(PAGES[page].read_text())
    assert [quote for quote in records.quoted(page) if one_line(quote) not in text] == []


def one_line(text):
    """A text as if no line had been broken."""
    return " ".join(text.split())


def sections(text):
    """Yields the blocks below each heading of a page, without its code."""
    found = []
    for block in re.split(r"\n\s*\n", documents.FENCE.sub("", text)):
        if HEADING.match(block):
            yield found
            found = []
        else:
            found.append(block)
    yield found


def unbound(page, text):
    """The measured numbers of a text that no record has, and that it does not call unrecorded."""
    left = []
    for blocks in sections(text):
        if any("section is unrecorded" in block for block in blocks):
            continue
        for block in blocks:
            if "unrecorded" in block or "| limits |" in block:
                continue
            block = one_line(LIMIT.sub(" ", MODEL.sub(" ", block)))
            for known in (*records.quoted(page), *STATED.get(page, ())):
                block = block.replace(one_line(known), " ")
            left += QUANTITY.findall(NO_QUANTITY.sub(" ` ", block))
    return left


@pytest.mark.parametrize("page", sorted(PAGES.keys() - OTHERS))
def test_a_measured_number_is_recorded_or_called_unrecorded(page):
    assert unbound(page, PAGES[page].read_text()) == []


@pytest.mark.parametrize("page", sorted(PAGES.keys() - OTHERS))
def test_a_planted_number_is_noticed(page):
    planted = (
        "reaches 0.917 top-1", "differs by 3e-6", "has 98.7 AUROC", "has an accuracy of 0.93",
        "has 98 AUROC", "gains 12 points", "takes 2.5x the time", "needs 3.1 GiB",
        "took 71 minutes", "loads 312 images/s", "is 4 % faster", "costs 17 CPU seconds",
        "scores 61.2 ± 4",
    )  # fmt: skip
    missed = [words for words in planted if not unbound(page, f"## Planted\n\nIt {words} here.")]
    assert missed == []


def test_every_number_that_readme_calls_measured_is_of_a_record():
    """With or without a unit; what holds by a test alone is named."""
    table = PAGES["README.md"].read_text().partition("| promise | measured |")[2]
    tested = {"1e-5 in logits, for every format"}
    left = {row.split("|")[2].strip() for row in table.splitlines()[2:] if row.startswith("|")}
    for quote in records.quoted("README.md"):
        left = {cell.replace(quote, "") for cell in left}
    assert {cell for cell in left if re.search(r"\d", cell)} == tested


# --- Commands -------------------------------------------------------------------------------------


def printed():
    """Yields the commands of the tables that have a column for them, and those of the records."""
    found = [line.get("command") for name in records.names() for line in records.lines(name)]
    for page in PAGES.values():
        for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
            if re.search("command|repeat", table.partition("\n")[0]):
                found += re.findall(r"`((?:vit_jax|python|launch/\S+) [^`]*)`", table)
    return sorted({command for command in found if command})


@pytest.mark.parametrize("command", printed())
def test_a_printed_command_is_whole(command, monkeypatch):
    program, *words = shlex.split(command)
    for path in (word.rpartition("=")[2] for word in words):
        if path.startswith(("docs/", "tests/", "launch/", "configs/")):
            assert (runs.ROOT / path).exists(), path
    if program == "vit_jax":
        cli.parse_command(cli.split_options(words)[0])
    elif words[:2] == ["-m", "research.findings"]:
        command = importlib.import_module("research.findings.__main__")
        cli.create_parser(command).parse_all(cli.split_options(words[2:])[0])
    elif program == "python":
        if words[0] == "-m":
            name, words = words[1], words[1:]
        else:
            name = words[0].removeprefix("tests/helpers/").removesuffix(".py")
        parses(importlib.import_module(name), words, monkeypatch)
    else:
        assert (runs.ROOT / program).is_file()


class Parsed(Exception):
    """The arguments are those of the program."""


def parses(module, words, monkeypatch):
    """Calls the main function of a helper until it has parsed its arguments."""
    parse = argparse.ArgumentParser.parse_args

    def stop(self, *given, **keywords):
        parse(self, *given, **keywords)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(Parsed):
        module.main()


@functools.cache
def models():
    """The table of models in README, by name: the other cells."""
    rows = MODEL.findall(PAGES["README.md"].read_text())
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}


def test_the_accuracies_of_the_models_are_those_published():
    entries = {entry.name: entry for entry in zoo.entries()}
    for name, (model, data, accuracy, source, *_) in models().items():
        entry = entries[name]
        assert (model, data) == (entry.model, entry.data)
        if entry.access == "bundled":
            assert accuracy.startswith(f"{records.bundled(name):.1f} % on CIFAR-10")
        else:
            assert accuracy == f"{entry.top1:.2f} %"
            assert source == entry.reported_by


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "-m research.faults",
        "-m research.corruption",
        "-m research.home_repetitions table",
        "-m research.fleet",
    ],
)
def test_a_cheap_command_prints_the_rows_of_its_page(command):
    done = subprocess.run(
        [sys.executable, *command.split()],
        cwd=runs.ROOT, env=runs.environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = PAGES["docs/paper.md" if "home" in command else "docs/reliability.md"].read_text()
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert rows
    assert [row for row in rows if row not in page] == []
