import json

import pytest

from helpers.toy_findings import Runner, finding, study, training
from research import findings
from research.findings.declaration import Measurement


def rate_of(cell):
    return {0.1: 0.6, 0.2: 0.7}.get(cell.lr, 0.5)


def pair():
    return training("one"), training("two", train__clip_norm=1.0)


def test_rates_are_chosen_on_held_out_images_over_seeds_and_then_all_seeds_run(tmp_path):
    toy, run = study(tmp_path, finding(*pair())), Runner(rate_of)
    toy.perform(run=run)
    assert [toy.rate(one) for one in pair()] == [0.2, 0.2]
    tried = [(cell.lr, cell.cfg.seed) for cell in run.ran if cell.facts["label"] == "one"]
    # The best of the declared three is the highest: 0.4 is tried too, and then all seeds run.
    declared = [(rate, seed) for seed in (0, 1) for rate in (0.05, 0.1, 0.2)]
    assert tried == [*declared, (0.4, 0), (0.4, 1), (0.2, 2)]
    assert toy.search(pair()[0]) == (0.2, [0.05, 0.1, 0.2, 0.4], True)
    assert toy.at_an_end(pair()[0]) is None


@pytest.mark.parametrize(
    ("results", "rate"),
    [
        # By rate and seed: the mean decides, not the best run; of equal ones the lower rate.
        ({(0.1, 0): 0.9, (0.1, 1): 0.1, (0.2, 0): 0.6, (0.2, 1): 0.6}, 0.2),
        ({(0.1, 0): 0.6, (0.1, 1): 0.6, (0.2, 0): 0.7, (0.2, 1): None}, 0.1),  # it diverged
        ({(0.05, 0): 0.4, (0.05, 1): 0.4, (0.025, 0): 0.4, (0.025, 1): 0.4}, 0.1),
    ],
)
def test_the_rate_with_the_best_mean_is_chosen(tmp_path, results, rate):
    toy = study(tmp_path, finding(*pair()))
    toy.perform(run=Runner(lambda cell: results.get((cell.lr, cell.cfg.seed), 0.5)))
    assert toy.rate(pair()[0]) == rate


def test_a_search_without_an_end_stops_after_three_steps(tmp_path):
    toy = study(tmp_path, finding(*pair()))
    toy.perform(run=Runner(lambda cell: 0.5))  # of equal ones the lowest is the best
    best, rates, ended = toy.search(pair()[0])
    assert (best, ended) == (0.00625, True)
    assert rates == [0.00625, 0.0125, 0.025, 0.05, 0.1, 0.2]
    assert toy.at_an_end(pair()[0]) == pair()[0]


def test_fine_tuning_waits_until_the_rate_of_its_origin_is_final(tmp_path):
    origin = training("origin")
    tuned = training("tuned", origin=origin, rates=(0.3,), train__clip_norm=2.0)
    run = Runner(rate_of)
    study(tmp_path, finding(tuned, origin)).perform(run=run)
    labels = [cell.facts["label"] for cell in run.ran]
    assert labels == ["origin"] * 9 + ["tuned"] * 3
    assert {cell.origin.lr for cell in run.ran if cell.origin} == {0.2}


def test_fine_tuning_begins_with_the_chosen_rate_of_its_origin_and_the_same_seed(tmp_path):
    origin = training("origin")
    tuned = training("tuned", origin=origin, rates=(0.3,), train__clip_norm=2.0)
    run = Runner(rate_of)
    toy = study(tmp_path, finding(tuned, origin))
    toy.perform(run=run)
    cells = [cell for cell in run.ran if cell.facts["label"] == "tuned"]
    assert [(cell.cfg.seed, cell.origin.lr, cell.origin.cfg.seed) for cell in cells] == [
        (seed, 0.2, seed) for seed in range(3)
    ]
    assert cells[0].in_workdir(tmp_path).init_from == str(tmp_path / cells[0].origin.directory)
    record = toy.records.find(cells[0])
    assert record["origin"] == cells[0].origin.digest


def test_weights_that_are_gone_are_made_again_but_recorded_once(tmp_path):
    origin = training("origin", rates=(0.1,))
    toy = study(tmp_path, finding(origin))
    toy.perform(run=Runner(rate_of))
    tuned = training("tuned", origin=origin, rates=(0.3,), train__clip_norm=2.0)
    elsewhere, run = tmp_path / "elsewhere", Runner(rate_of)
    study(tmp_path, finding(tuned, origin), workdir=elsewhere).perform(run=run)
    assert [cell.facts["label"] for cell in run.ran] == ["origin"] * 3 + ["tuned"] * 3
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    digests = [json.loads(line)["digest"] for line in lines]
    assert len(digests) == len(set(digests)) == 6


def test_a_digest_depends_on_what_determines_the_result_and_on_nothing_else(tmp_path):
    size = study(tmp_path, finding(training("one")))

    def digest(*args, root=None, **more):
        overrides = {"data.threads": "2"} if root else {}
        one = findings.FindingsStudy(size.size, [], size.records, tmp_path, overrides)
        cell = one.cell(training(*args, **more), 0.1, 0)
        return cell.digest

    assert digest("one") == digest("another name") == digest("one", root=True)
    different = [
        digest("one", train__clip_norm=1.0),
        digest("one", measurements=(Measurement(kind="positions"),)),
        digest("one", origin=training("origin", rates=(0.1,))),
    ]
    assert len({digest("one"), *different}) == 4
