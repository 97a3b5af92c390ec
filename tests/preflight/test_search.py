import dataclasses
import json

import pytest

from preflight_reports import create_report, tiny
from vit_jax import config, preflight
from vit_jax.preflight import batch, program, search, topologies

WHERE = topologies.Slice(name="v3-8", devices=(None,) * 8, cores=8, memory=16 * 2.0**30)


def compiler(needs, tried):
    """A stand-in that says how much memory, in GiB, the settings of a config need."""

    def compile_(cfg, where, examples):
        settings = program.Settings.from_config(cfg)
        tried.append(settings)
        peak = needs(settings) * 2**30
        return create_report(settings=settings, peak=peak, fits=peak <= where.memory)

    return compile_


def test_the_plain_step_is_tried_first_and_taken_if_it_fits():
    tried = []
    cfg = tiny(train={"batch_size": 512})
    report = search.fit_batch(cfg, WHERE, 200, compile_=compiler(lambda s: 10, tried))
    assert tried == [program.Settings(1, "none", 2, 1)]
    assert report.settings.flags() == (
        "--config.train.accumulation=1 --config.model.remat=none "
        "--config.model.unroll=2 --config.mesh.fsdp=1"
    )


def test_what_is_faster_comes_first():
    found = list(search.candidates(tiny(train={"batch_size": 512}), 8, loops=False))
    order = {settings: i for i, settings in enumerate(found)}
    plain, half = program.Settings(1, "none", 2, 1), program.Settings(2, "none", 2, 1)
    dots, full = program.Settings(1, "dots_no_batch", 1, 1), program.Settings(1, "full", 1, 1)
    attention = program.Settings(1, "attention", 2, 1)
    assert order[plain] < order[half] < order[attention] < order[dots] < order[full]
    assert order[plain] < order[dataclasses.replace(plain, fsdp=8)]
    assert len(set(found)) == len(found)
    loops = list(search.candidates(tiny(train={"batch_size": 512}), 8, loops=True))
    assert {settings.unroll for settings in loops} == {1}
    resnet = config.build(
        {"model": {"architecture": "resnet", "resnet_units": (1, 2), "num_classes": 5},
         "train": {"batch_size": 512}}
    )  # fmt: skip
    kinds = {one.remat for one in search.candidates(resnet, 8, loops=False)}
    assert kinds == {"none", "dots_no_batch", "full"}  # it has no attention


def test_halving_until_it_fits_skips_what_cannot():
    """A state of 0.75 GiB and 64 GiB of activations: four microbatches are just right."""
    tried = []
    needs = lambda s: 0.75 + 64 / s.accumulation * (1 if s.remat == "none" else 0.9)  # noqa: E731
    report = search.fit_batch(
        tiny(train={"batch_size": 512}), WHERE, 200, compile_=compiler(needs, tried)
    )
    assert report.fits
    assert report.peak <= WHERE.memory
    assert tried[0] == program.Settings(1, "none", 2, 1)
    # Its failure shows that two microbatches cannot do either.
    assert program.Settings(2, "none", 2, 1) not in tried


def test_any_accumulation_that_divides_is_tried():
    """12 images a device, of which two fit: six microbatches."""
    needs = lambda s: 8 * 12 / s.accumulation  # noqa: E731
    cfg = tiny(train={"batch_size": 96})
    report = search.fit_batch(cfg, WHERE, 200, compile_=compiler(needs, []))
    assert (report.fits, report.settings.accumulation) == (True, 6)


def test_nothing_fits():
    tried = []
    report = search.fit_batch(
        tiny(train={"batch_size": 64}), WHERE, 200, compile_=compiler(lambda s: 99, tried)
    )
    assert not report.fits
    with pytest.raises(config.ConfigError, match="=4: not a multiple of 8 devices; nearest: 8$"):
        search.fit_batch(
            tiny(train={"batch_size": 4}), WHERE, 200, compile_=compiler(lambda s: 1, [])
        )


@pytest.mark.parametrize(
    ("message", "gib"),
    [
        ("Ran out of memory in memory space hbm. Used 29.50G of 15.48G hbm.", 29.5),
        ("... required for HLO temporaries (98.02G) exceeds available HBM (15.48G).", 98.02),
        ("something else", None),
    ],
)
def test_what_the_compiler_says_of_memory(message, gib):
    assert search.used_memory(message) == (None if gib is None else gib * 2**30)


def test_results_are_kept_and_not_compiled_again(tmp_path, monkeypatch):
    asked = []

    def measure(cfg, where, examples, teacher):
        asked.append((cfg.name, where.name))
        return create_report(name=cfg.name, topology=where.name, steps=25)

    monkeypatch.setattr(batch, "measure", measure)
    runs = [(tiny(name="a"), 200), (tiny(name="b", train={"duration": 7}), 200)]
    runs.append((tiny(name="c", model={"dropout": 0.0}), 200))
    for name, until in (("d", "2 steps"), ("e", "2 steps"), ("f", "3 steps")):
        phases = {"data": {"phases": [{"name": "p", "until": until, "image_size": 4}]}}
        runs.append((tiny(name=name, **phases), 200))
    file = tmp_path / "reports.jsonl"

    def go():
        keywords = {"fit": False, "loops": False, "output": file, "say": lambda text: None}
        return list(preflight.measure_all(runs, [WHERE], **keywords))

    first = go()
    # b differs from a in its length alone, f from d in the share of its phase.
    assert asked == [(name, "v3-8") for name in "acdf"]
    assert [one.name for one in first] == [*"abcdef"]
    assert [one.steps for one in first[1:2]] == [7]
    assert go() == first
    assert len(asked) == 4
    assert [json.loads(line)["report"]["name"] for line in file.read_text().splitlines()] == [
        *"acdf"
    ]
    file = tmp_path / "missing" / "reports.jsonl"
    with pytest.raises(config.ConfigError, match="cannot be written: No such file"):
        go()


def test_markdown_has_a_row_per_run_and_a_column_per_slice():
    reports = [
        create_report(name="a"),
        create_report(name="a", topology="v5e-16", fits=False, peak=None),
        create_report(name="b", settings=program.Settings(2, "full", 1, 8), peak=3 * 2**30),
    ]
    assert preflight.markdown(reports, 0.5, {"a": 680.0}) == [
        "| run | v3-8 | v5e-16 | paper |",
        "| --- | --- | --- | --- |",
        "| a | plain; 1.0; 2 | does not fit | 680 |",
        "| b | full + fsdp 8 + acc 2; 3.0; 2 |  |  |",
    ]


def test_small_products_cost_more_than_recomputation():
    """Microbatches of 4 images a device take twice as long, a recomputed forward pass a third."""
    found = list(search.candidates(tiny(train={"batch_size": 512}), 8, loops=False))
    halves = found.index(program.Settings(16, "none", 2, 1))
    assert found.index(program.Settings(1, "full", 1, 1)) < halves


@pytest.mark.parametrize("memory", [None, 16.0])
def test_a_failure_that_says_nothing_rules_nothing_else_out(memory):
    """Neither where the compiler names no bytes, nor where the device's memory is not known."""
    where = dataclasses.replace(WHERE, memory=memory)
    tried = []

    def compile_(cfg, where, examples):
        tried.append(program.Settings.from_config(cfg))
        peak = None if memory else 99
        return create_report(settings=tried[-1], peak=peak, fits=False, exceeds="no bytes")

    cfg = tiny(train={"batch_size": 32})
    search.fit_batch(cfg, where, 200, compile_=compile_)
    assert tried == list(search.candidates(cfg, len(where.devices), loops=False))


def test_pairs_stay_together():
    """Mixup mixes within a microbatch: none has one image."""
    cfg = tiny(train={"batch_size": 4, "mixup": 0.8})
    assert {one.accumulation for one in search.candidates(cfg, 1, loops=False)} == {1, 2}
