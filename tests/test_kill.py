"""Harm done to runs changes nothing; `research/faults.py` does it as often as you like."""

import random

import pytest

from research import drawn_configs, faults

ALONE = [name for name, kind in faults.KINDS.items() if kind.processes == 1]


@pytest.fixture(autouse=True)
def work(tmp_path_factory, monkeypatch):
    for module in (faults, drawn_configs):
        monkeypatch.setattr(module, "WORK", tmp_path_factory.getbasetemp() / "campaign")


def check(line):
    assert line["problem"] is None
    assert line["hangs"] == 0
    # Damage before the next save sets a run back further each time: only the first is bounded.
    bounded = line["lost"][:1] if line["fault"] == "damaged-checkpoint" else line["lost"]
    # One commit and one save in flight: at most two intervals of five steps are repeated.
    assert max(bounded, default=0) <= 2 * 5


@pytest.mark.slow  # of two processes: test_peers.py, and with the twenty
@pytest.mark.parametrize("kind", ALONE)
def test_a_fault_of_every_kind(kind):
    line = faults.batch(kind, seed=1, faults=1)
    check(line)
    assert len(line["lost"]) == 1


@pytest.mark.long
@pytest.mark.parametrize("kind", faults.KINDS)
def test_twenty_faults_of_every_kind(kind):
    lines = []
    while sum(len(line["lost"]) for line in lines) < 20:
        lines.append(faults.batch(kind, seed=1000 + len(lines)))
        check(lines[-1])
    resumed, struck = (sum(counts) for counts in zip(
        *((line["resumed"], len(line["lost"])) for line in lines), strict=True
    ))  # fmt: skip
    assert resumed > struck / 2  # else it was not resuming that was tried


def test_every_drawn_config_can_run():
    drawn = [
        drawn_configs.draw(random.Random(seed), 1 + seed % 2, lambda photos: "x")
        for seed in range(60)
    ]
    for sections, devices, _ in drawn:
        drawn_configs.configure(sections)  # raises
        assert devices in (1, 2, 4)
    words = {word for _, _, found in drawn for word in found.split(", ")}
    assert words >= {
        "JPEGs", "digits", "RandAugment", "erasing", "labels", "masked", "teacher", "LoRA", "MAE",
        "DINO", "KoLeo", "masked views", "mixup", "CutMix", "average", "accumulation", "replay",
        "bfloat16 moments", "4 devices", "ZeRO",
    }  # fmt: skip


def test_the_page_has_the_record():
    page = (faults.runs.ROOT / "docs/reliability.md").read_text()
    for line in faults.markdown(faults.lines_of()):
        assert line in page, "python -m research.faults"
