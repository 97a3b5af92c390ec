"""launch/answers.txt, the table of what answers mean, in the scripts and in the documentation."""

import re
import subprocess

import pytest

import worlds

TABLE = worlds.ROOT / "launch/answers.txt"
DOCUMENT = worlds.ROOT / "docs/reliability.md"


def rows():
    lines = [line for line in TABLE.read_text().splitlines() if line and line[0] != "#"]
    return [(*line.split()[:2], re.split(r" [-=]> ", line.split(None, 2)[2])[0]) for line in lines]


def meaning(kind, text):
    script = f'source {worlds.ROOT}/launch/answers.sh; meaning "$1" "$2"; echo "$MEANING|$REMEDY"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", kind, text], capture_output=True, text=True, check=True
    )
    return tuple(done.stdout.rstrip("\n").split("|"))


def test_the_documentation_shows_the_table():
    text = DOCUMENT.read_text()
    shown = re.findall(r"^\| (\w+) \| (\w+) \| `(.*)` \|$", text, re.MULTILINE)
    assert [(a, b, pattern.replace(r"\|", "|")) for a, b, pattern in shown] == rows()
    meanings = {row[1] for row in rows()} | {"unknown"}
    explained = set(re.findall(r"^\| (\w+) \| [A-Z]", text, re.MULTILINE))
    assert meanings <= explained


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("request", "ACTIVE", "active"),
        ("request", "ACTIVE ACTIVE", "unknown"),
        ("request", "", "unknown"),
        ("node", "READY", "ready"),
        ("node", "UNKNOWN", "unknown"),
        ("exit", "0", "done"),
        ("exit", "71", "permanent"),
        ("exit", "137", "retry"),
        ("error", "Quota exceeded for 'Requests per minute'", "retry"),
        ("error", "Quota limit 'T' has been exceeded", "permanent"),
        ("error", "\x1b[0m garbage \u2026", "unknown"),
        ("nothing", "ACTIVE", "unknown"),
    ],
)
def test_an_answer_means(kind, text, expected):
    assert meaning(kind, text)[0] == expected


def test_what_stands_after_the_arrow_is_the_remedy():
    found = meaning("error", "PERMISSION_DENIED: x")[1]
    assert found == "-> the account needs the roles TPU Admin and Service Account User"
