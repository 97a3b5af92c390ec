"""How turns are taken, compared, shown and kept; no time is asserted."""

import sys

import pytest

from vit_jax import config
from vit_jax.benchmarks import train, turns

COMPARED = turns.Compared(
    work="save",
    unit="MB",
    amount=100.0,
    results=[
        turns.Turns(name="vit_jax", seconds=[1.0, 2.0, 4.0], cpu=[0.5, 0.5, 0.7]),
        turns.Turns(name="orbax", seconds=[2.0, 2.0, 6.0], cpu=[1.0, 2.0, 3.0]),
    ],
)


def test_programs_take_turns_in_alternating_order_between_what_is_not_timed():
    said = []
    found = turns.take(
        {name: lambda name=name: said.append(name) for name in "ab"},
        rounds=3,
        before=lambda name: said.append(f"({name}"),
        after=lambda name: said.append(f"{name})"),
    )
    assert "".join(said) == "(aaa)(bbb)(bbb)(aaa)(aaa)(bbb)"
    assert [(one.name, len(one.seconds), len(one.cpu)) for one in found] == [
        ("a", 3, 3),
        ("b", 3, 3),
    ]


def test_the_peak_is_the_highest_of_all_turns():
    peaks = iter([1.0, 3.0, 2.0])
    program = lambda: turns.Turn(seconds=1.0, cpu=1.0, peak=next(peaks))  # noqa: E731
    (found,) = turns.take({"a": program}, rounds=3)
    assert found.facts == {"peak": 3.0}


def test_the_ratio_is_the_median_over_turns_and_its_range():
    assert turns.ratios(*COMPARED.results) == (1.5, 1.0, 2.0)
    with pytest.raises(ValueError, match="shorter"):
        turns.ratios(COMPARED.results[0], turns.Turns(name="b", seconds=[1.0], cpu=[1.0]))


@pytest.mark.parametrize(("peak", "shown"), [(None, "0.5"), (2e12, "0.5 (25%)")])
def test_the_table_shows_rates_ratios_and_what_else_is_known(peak, shown):
    header, rows = turns.table([COMPARED])
    ours, other = (dict(zip(header, row, strict=True)) for row in rows)
    assert ours == {
        "work": "save", "program": "vit_jax", "per second": "50 MB", "seconds": "2",
        "CPU seconds": "0.5", "vit_jax's speed over it": "-",
    }  # fmt: skip
    assert other["vit_jax's speed over it"] == "1.50x (1.00 to 2.00)"
    known = turns.Turns(name="a", seconds=[2.0], cpu=[1.0], facts={"peak": 2**30, "start": 5.0})
    one = turns.Compared(
        work="w", unit="images", amount=1, results=[known], flops=1e12, peak_flops=peak
    )
    header, (row,) = turns.table([one])
    cells = dict(zip(header, row, strict=True))
    assert cells["TFLOP/s (MFU)"] == shown
    assert (cells["peak GiB"], cells["first step, s"]) == ("1.00", "5.0")


def test_a_record_has_every_turn_and_its_origin():
    line = turns.record([COMPARED], {"model": "ViT-S/16"}, "vit_jax bench checkpoint", ("optax",))
    assert line["command"] == "vit_jax bench checkpoint"
    assert line["work"] == {"model": "ViT-S/16"}
    assert line["device"] == "cpu"
    assert line["versions"].keys() == {"jax", "jaxlib", "optax", "vit_jax"}
    (one,) = line["compared"]
    assert (one["what"], one["unit"], one["amount"]) == ("save", "MB", 100.0)
    ours, other = one["results"]
    assert "ratio" not in ours
    assert other["seconds"] == [2.0, 2.0, 6.0]
    assert other["ratio"] == (1.5, 1.0, 2.0)


def worker(code):
    return turns.Worker("train", "timm", [sys.executable, "-c", f"import sys\n{code}"])


def test_programs_import_this_package_and_no_clone_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "vit_jax/benchmarks").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = f"import vit_jax.utils; assert {str(turns.HERE.parent)!r} in vit_jax.utils.__file__"
    command = [*turns.PYTHON, "-S", "-c", code]  # -S: as where it is not installed
    assert turns.run(command).seconds > 0
    assert train.WORKER[:2] == turns.PYTHON
    with turns.Worker("input", "a tar", [*command[:-1], f"{code}; print({{}})"]) as one:
        assert one.answer() == {}


def test_only_our_workers_keep_what_our_command_sets_for_itself(monkeypatch):
    """A program measured from its start sets it again, as a user's would."""
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    code = "import os, json; print(json.dumps({'set': 'GLIBC_TUNABLES' in os.environ}))"
    for python, kept in ((turns.PYTHON, True), ((sys.executable,), False)):
        with turns.Worker("input", "a tar", [*python, "-c", code]) as one:
            assert one.answer() == {"set": kept}
    assert turns.run([*turns.PYTHON, "-c", "import os; assert 'GLIBC_TUNABLES' not in os.environ"])


def test_a_worker_answers_in_json_among_what_libraries_print():
    code = """
for line in sys.stdin:
    print("a library"); print(5)
    print('{"seconds": %d, "cpu": 1, "peak": 7}' % (3 * int(line)), flush=True)"""
    with worker(code) as one:
        assert one.take(4) == turns.Turn(seconds=3.0, cpu=0.25, peak=7)
        assert one.take(1) == turns.Turn(seconds=3.0, cpu=1.0, peak=7)


@pytest.mark.parametrize(
    ("code", "error", "line"),
    [
        ("""print('{"memory": "too large"}')""", turns.DoesNotFit, "too large"),
        ("""print('{"error": "no such"}')""", config.ConfigError, "bench train: timm: no such"),
        ("sys.exit('no room')", config.ConfigError, "bench train: timm ended early: no room"),
        ("sys.exit(3)", config.ConfigError, "bench train: timm ended early: exit code 3"),
    ],
)
def test_a_worker_that_cannot_is_named_with_its_last_words(code, error, line):
    with worker(code) as one, pytest.raises(error, match=line):
        one.take(1)


def test_a_program_is_measured_by_itself():
    """Its CPU time and memory, not those of this process, and what it said where it fails."""
    code = "import time\nheld = b'1' * {}\nwhile time.process_time() < 0.2: pass"
    for held in (1, 300_000_000):
        found = turns.run([sys.executable, "-c", code.format(held)])
        assert 0.2 <= found.cpu < 5
        assert found.seconds > 0.1
        assert 0 < found.peak - held < 60e6  # this process has more: it has imported jax
    with pytest.raises(config.ConfigError, match=r"exit code 3: it says nothing"):
        turns.run([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(config.ConfigError, match=r"exit code 1: no room"):
        turns.run([sys.executable, "-c", "raise SystemExit('no room')"])
