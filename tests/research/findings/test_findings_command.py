import json

import cv2
import pytest

from helpers.toy_findings import Runner, finding, study, training
from research import findings
from research.findings import __main__ as command
from vit_jax import cli


def main(*words):
    return cli.main(list(words), command)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--only=posiions"], "--only=posiions: no such finding; did you mean pos"),
        (["--scale=tpu"], "--scale=tpu: no such scale"),
        (["--verify=1", "--dry-run"], "--verify: runs cells"),
        (["--verify=1", "--only=positions"], "cifar100"),
        (["--dry-run", "--config.optimizer.lr=1"], "optimizer.lr=1: would change"),
    ],
)
def test_mistakes_take_one_line(capsys, tmp_path, words, expected):
    assert main(*words, f"--workdir={tmp_path}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_a_dry_run_shows_every_cell_with_its_time_and_writes_nothing(capsys, tmp_path):
    words = ["--dry-run", f"--workdir={tmp_path}", "--only=positions"]
    assert main(*words) == 0
    shown = capsys.readouterr().out
    assert "the best one" in shown
    assert "25 GFLOP/s per process" in shown
    assert main(*words, "--json") == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["verdict"] == "not run"
    assert len(finding["cells"]) == 4 * (2 * 2 + 3)
    assert all(cell["seconds"] > 25 for cell in finding["cells"])
    assert not list(tmp_path.iterdir())


def test_figures_of_what_has_run_have_error_bars(tmp_path):
    pair = training("one"), training("two", train__clip_norm=1.0)
    toy = study(tmp_path, finding(*pair))
    toy.perform(run=Runner(lambda c: 0.3 - abs(c.lr - 0.1) - 0.1 * (not c.cfg.train.clip_norm)))
    page = tmp_path / "page" / "toy.md"
    findings.write(toy, page, "python -m research.findings --scale=toy")
    text = page.read_text()
    assert "```sh\npython -m research.findings --only=toy --scale=toy\n```" in text
    assert "| toy | One is ahead of another. | nowhere | not reproduced at this scale |" in text
    assert "-10.00 points ± 0.00 points" in text
    assert "![top-1](pictures/findings-toy-toy.png)" in text
    picture = cv2.imread(str(page.parent / "pictures" / "findings-toy-toy.png"))
    assert picture.std() > 0
    assert "<svg" in page.with_suffix(".html").read_text()


def test_pre_training_without_a_measure_of_its_own_counts_its_runs(tmp_path):
    class Unlabeled(Runner):
        def _answer(self, cell):
            labeled = cell.facts["label"] == "labeled"
            return super()._answer(cell) | ({} if labeled else {"results": {"loss": 1.0}})

    toy = study(
        tmp_path, finding(training("masked", rates=(0.1,)), training("labeled", rates=(0.2,)))
    )
    toy.perform(run=Unlabeled(lambda cell: 0.5))
    text = findings.write(toy, tmp_path / "toy.md", "vit_jax")[0].read_text()
    assert "| masked | 0.1 | 3 |  |  |" in text
    assert "| labeled | 0.2 | 3 |  | 50.10 ± 0.25 |" in text


def test_a_rate_is_called_tried_once_it_has_run(tmp_path):
    """Not while it is only the next one of a search that goes on."""

    class Interrupted(Exception):
        pass

    def rising(cell):
        if cell.lr > 0.2:
            raise Interrupted
        return cell.lr

    toy = study(tmp_path, finding(training("one", rates=(0.1, 0.2))))
    with pytest.raises(Interrupted):
        toy.perform(run=Runner(rising))
    text = findings.write(toy, tmp_path / "toy.md", "vit_jax")[0].read_text()
    assert "| one | 0.2 (also tried: 0.1) |" in text
    toy.perform(run=Runner(lambda cell: cell.lr if cell.lr < 0.3 else 0.0))
    text = findings.write(toy, tmp_path / "toy.md", "vit_jax")[0].read_text()
    assert "| one | 0.2 (also tried: 0.1, 0.4) |" in text
