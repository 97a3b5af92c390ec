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


QUOTA = "-> ask for more (console: IAM & Admin, Quotas; each API has its own), or try another "
ROLES = "-> the account needs the roles "


@pytest.mark.parametrize(
    ("kind", "text", "expected", "remedy"),
    [
        ("request", "ACTIVE", "active", ""),
        ("request", "ACTIVE ACTIVE", "unknown", ""),
        ("request", "", "unknown", ""),
        ("node", "READY", "ready", ""),
        ("node", "UNKNOWN", "unknown", ""),
        ("exit", "0", "done", ""),
        ("exit", "71", "permanent", ""),
        ("exit", "137", "retry", ""),
        ("error", "Quota exceeded for 'Requests per minute'", "retry", ""),
        ("error", "Quota limit 'T' has been exceeded", "permanent", QUOTA),
        ("error", "Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0", "permanent", QUOTA),
        ("error", "PERMISSION_DENIED: x", "permanent", f"{ROLES}TPU Admin and Service Account U"),
        (
            "error",
            "Could not fetch resource: Required 'compute.instanceTemplates.create' permission for",
            "permanent",
            f"{ROLES}Compute Instance Admin (v1) and Service Account User",
        ),
        (
            "error",
            "Cloud TPU API has not been used in project p",
            "permanent",
            "=> Cloud TPU API is off; gcloud services enable tpu.googleapis.com --project=PROJECT",
        ),
        ("error", "INVALID_ARGUMENT: accelerator type not found", "permanent", ""),
        (
            "error",
            "The resource 'projects/ubuntu-os-accelerator-images/global/images/family/x' was not f"
            "ound",
            "permanent",
            "-> no such image; --runtime=FAMILY",
        ),
        ("error", "The resource 'projects/p/zones/z' was not found", "permanent", ""),
        ("error", "UNAVAILABLE: try later", "retry", ""),
        ("error", "RESOURCE_EXHAUSTED: There is no more capacity in the zone", "retry", ""),
        ("error", "Could not fetch resource: ZONE_RESOURCE_POOL_EXHAUSTED", "retry", ""),
        ("error", "\x1b[0m garbage \u2026", "unknown", ""),
        ("nothing", "ACTIVE", "unknown", ""),
    ],
)
def test_an_answer_means(kind, text, expected, remedy):
    found, told = meaning(kind, text)
    assert found == expected
    assert told.startswith(remedy)
    assert bool(told) == bool(remedy)
