"""What `bench infer` looks for and how it says it; no test depends on a time."""

import csv
import importlib.util
import math
import re
import types

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from vit_jax import config, models, preflight
from vit_jax.benchmarks import forward, infer, infer_files, max_batch

GIB = 2**30


def measured(model, side, rates, limit="memory: batch 8 does not fit"):
    """Batches of 1, 2, 4, ... with so many images per second."""
    timed = [infer.TimedBatch(batch=2**i, seconds=2**i / rate) for i, rate in enumerate(rates)]
    network = types.SimpleNamespace(flops=2e9)
    one = forward.Forward(model=model, size=side, side=side, network=network)
    return infer.Measured(forward=one, timed=timed, limit=limit)


def test_an_input_size_becomes_the_nearest_that_a_model_takes():
    names = ("ViT-H/14", "ViT-B/16", "R50+ViT-B/32", "R50x1")
    found = forward.create_forwards(names, forward.SIZES, "tpu")
    sides = {name: [one.side for one in found if one.model == name] for name in names}
    assert sides["ViT-H/14"] == [70, 126, 224, 378, 518]
    assert sides["ViT-B/16"] == sides["R50x1"] == list(forward.SIZES)
    assert sides["R50+ViT-B/32"] == list(forward.SIZES)
    assert [one.side for one in forward.create_forwards(names[:1], (5,), "cpu")] == [14]
    assert {one.network.config.dtype for one in found} == {"bfloat16"}
    network = found[5].network
    assert network.flops == models.create(network.config, image_size=(64, 64)).flops


@pytest.mark.parametrize(
    ("fixed", "each", "memory", "bend", "most"),
    [
        (0.5 * GIB, 4e6, 16 * GIB, math.inf, 5),
        (9 * GIB, 3e9, 16 * GIB, math.inf, 5),
        (0.1 * GIB, 1.2e5, 15.5 * GIB, math.inf, 5),
        (1e8, 1e6, 16e9, 300, 6),
        (1e8, 1e6, 16e9, 3000, 6),
    ],
)
def test_the_largest_batch_is_found_in_few_compilations(fixed, each, memory, bend, most):
    """From the bend on an image takes three times as much."""
    tried = []

    def needed(batch):
        return fixed + each * batch + 2 * each * max(batch - bend, 0)

    def use(batch):
        assert batch not in tried
        tried.append(batch)
        return max_batch.MemoryUse(needed(batch), needed(batch) <= memory, memory)

    batch, peak = max_batch.find_largest(use)
    exact = next(count for count in range(200_000, 0, -1) if needed(count) <= memory)
    assert peak == needed(batch) <= memory
    assert exact / 1.06 <= batch <= exact
    assert len(tried) <= most


def test_a_compiler_that_allows_less_than_there_is_is_believed(monkeypatch):
    said = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (16.01G) exceeds available HBM (15.48G)."
    )
    refusals = [jax.errors.JaxRuntimeError(one) for one in (said, "INTERNAL: a bug")]

    def refuse(self, batch, device):
        raise refusals.pop(0)

    monkeypatch.setattr(forward.Forward, "compile", refuse)
    one = forward.Forward(model="tiny", size=16, side=16, network=None)
    where = types.SimpleNamespace(memory=16.0 * GIB, devices=["a core"])
    assert max_batch.compile_use(one, 8, where) == (16.01 * GIB, False, 15.48 * GIB)
    with pytest.raises(jax.errors.JaxRuntimeError, match="a bug"):
        max_batch.compile_use(one, 8, where)
    tried = []

    def use(batch):
        tried.append(batch)
        peak = GIB + 1e7 * batch
        return (
            max_batch.parse_refusal(said, 16 * GIB)
            if peak > 15.48 * GIB
            else max_batch.MemoryUse(peak, True, 16 * GIB)
        )

    batch, _ = max_batch.find_largest(use)
    exact = int(14.48 * GIB / 1e7)
    assert exact / 1.06 <= batch <= exact
    assert len(tried) <= 4


def test_where_not_one_image_fits_the_answer_is_none():
    assert max_batch.find_largest(lambda batch: max_batch.MemoryUse(2.0, False, 1.0)) == (0, 0.0)


@pytest.mark.slow
def test_a_program_gives_the_probabilities_of_images():
    tiny = config.Model(patch_size=(8, 8), width=16, depth=1, mlp_dim=16, heads=2, num_classes=1000)
    network = models.create(tiny, image_size=(16, 16))
    one = forward.Forward(model="tiny", size=16, side=16, network=network)
    place = jax.devices()[0]
    program = one.compile(2, place)
    params = jax.jit(one.network.init)(jax.random.key(0))
    found = np.asarray(program(params, infer.pixels(2, 16)))
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize(("platform", "peak"), [("cpu", 10 + 5 - 2 + 100), ("tpu", 13)])
def test_the_memory_of_a_program_on_a_cpu_includes_its_temporary_buffers(platform, peak):
    """XLA's own peak leaves them out there: 33 MB of 120 MB for ViT-Ti/16 at batch 64."""
    analysis = types.SimpleNamespace(
        peak_memory_in_bytes=13,
        argument_size_in_bytes=10,
        output_size_in_bytes=5,
        alias_size_in_bytes=2,
        temp_size_in_bytes=100,
    )
    program = types.SimpleNamespace(memory_analysis=lambda: analysis)
    assert infer.peak_memory(program, platform) == peak


def test_the_batch_doubles_until_memory_ends(monkeypatch):
    network = types.SimpleNamespace(init=lambda key: {"kernel": key})
    one = forward.Forward(model="tiny", size=16, side=16, network=network)

    def compile_(self, batch, device):
        if batch == 8:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return batch

    monkeypatch.setattr(forward.Forward, "compile", compile_)
    monkeypatch.setattr(infer, "pixels", lambda batch, side: None)
    monkeypatch.setattr(infer, "peak_memory", lambda *given: 1.0)
    monkeypatch.setattr(
        infer, "time_passes", lambda program, params, images, rounds: program**0.5 / 9
    )
    (result,) = infer.measure([one], rounds=2, say=lambda text: None)
    assert [timed.batch for timed in result.timed] == [1, 2, 4]
    assert result.limit == "memory: batch 8 does not fit"
    assert result.best.batch == result.batch == 4
    monkeypatch.setattr(
        infer, "time_passes", lambda program, params, images, rounds: float(program)
    )
    monkeypatch.setattr(infer, "SECONDS", 1.5)
    (result,) = infer.measure([one], rounds=2, say=lambda text: None)
    assert result.limit == "time: batch 2 takes 2.0 s"
    monkeypatch.setattr(infer, "peak_memory", lambda *given: 1e18)
    (result,) = infer.measure([one], rounds=2, say=lambda text: None)
    assert result.timed == []
    assert "half of the free memory" in result.limit
    half = 0.6 * infer._free_memory()
    monkeypatch.setattr(infer, "peak_memory", lambda *given: half)
    (result,) = infer.measure([one], rounds=2, say=lambda text: None)
    assert result.timed == []

    def broken(self, batch, device):
        raise jax.errors.JaxRuntimeError("INTERNAL: no such program")

    monkeypatch.setattr(forward.Forward, "compile", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        next(infer.measure([one], rounds=2, say=lambda text: None))


@pytest.mark.parametrize(
    ("platform", "dtype", "ends"),
    [("cpu", "float32", "as far as a batch takes 1 s or half"), ("tpu", "bfloat16", "until the")],
)
def test_the_title_says_what_ends_the_doubling_here(platform, dtype, ends, monkeypatch):
    device = types.SimpleNamespace(platform=platform, device_kind="a chip")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    what, where = infer.title(3)
    assert what.endswith(f"1,000 classes; {dtype}, parameters float32; median of 3 passes")
    assert re.fullmatch(rf"a chip \(.*\), jax .*; batches 1, 2, 4, \.\.\. {ends}.*", where)


def test_a_first_pass_is_not_timed():
    passes = []
    infer.time_passes(lambda *given: passes.append(given), "params", "images", 3)
    assert passes == 4 * [("params", "images")]


def test_every_forward_pass_is_searched_on_one_device(monkeypatch):
    """And the compilations are counted."""
    asked, said = [], []

    def use(one, batch, where):
        asked.append((one, batch, where))
        return max_batch.MemoryUse(batch, batch <= 100, 100)

    monkeypatch.setattr(max_batch, "compile_use", use)
    where = types.SimpleNamespace(name="v3-8")
    one = forward.Forward(model="tiny", size=15, side=16, network=None)
    (found,) = max_batch.search([one], where, said.append)
    assert (found.model, found.size, found.side, found.compiled) == ("tiny", 15, 16, len(asked))
    assert 95 <= found.batch == found.peak <= 100
    assert all(place is where for _, _, place in asked)
    assert said[0] == "tiny at 16 for v3-8: compiling a batch of 8"
    assert len(said) == len(asked)


@pytest.mark.parametrize(
    ("fits", "refused", "guess"), [([], 64, 32), ([8], 64, 48), ([8, 16], 80, 64)]
)
def test_the_next_batch_where_the_compiler_does_not_say_what_one_takes(fits, refused, guess):
    """Half of one that does not fit, then three quarters of the way there from the largest."""
    tried = {batch: max_batch.MemoryUse(0.0, True, 1e9) for batch in fits}
    tried[refused] = max_batch.MemoryUse(math.inf, False, 1e9)
    assert max_batch._next(tried) == guess


def test_the_axes_of_the_picture_are_logarithmic():
    (axes,) = (Figure().subplots(),)
    points = [("R50x1", 64, 10.0), ("ViT", 64, 9.0), ("R50+ViT", 64, 8.0)]
    infer_files._draw_panel(axes, infer_files.Panel("images/s", points))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("input size [pixels]", "images/s")
    assert [line.get_linestyle() for line in axes.get_lines()] == ["--", "-", "-"]


def test_tables_and_files_say_what_was_found(tmp_path):
    results = [
        measured("ViT-Ti/16", 64, [100.0, 300.0, 200.0]),
        measured("ViT-Ti/16", 224, [20.0]),
        measured("R50x1", 64, [50.0, 150.0]),
        measured("R50x1", 224, []),
    ]
    header, rows = infer.table(results)
    assert header[4] == "vs ViT-Ti/16"
    assert rows[0] == (
        "ViT-Ti/16", "64", "300", "2", "1.00x", "0.6", "4", "memory: batch 8 does not fit"
    )  # fmt: skip
    assert rows[2][2:5] == ("150", "2", "0.50x")
    assert rows[3][2:7] == ("-", "-", "-", "-", "0")
    table, picture = infer_files.write_chart(tmp_path, "a machine", *infer.files(results))
    lines = list(csv.DictReader(table.read_text().splitlines()))
    assert len(lines) == 6
    assert lines[1] == {
        "model": "ViT-Ti/16", "size": "64", "pixels": "64", "batch": "2", "seconds": "0.00666667",
        "images_per_second": "300",
    }  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_batches_that_were_compiled_are_written_too(tmp_path):
    found = [
        max_batch.Largest(model=name, size=64, side=64, batch=batch, peak=GIB * 15.0, compiled=3)
        for name, batch in (("ViT-B/16", 4096), ("ViT-H/14", 0))
    ]
    assert max_batch.table(found)[1][0] == ("ViT-B/16", "64", "4,096", "15.00", "3")
    table, _ = infer_files.write_chart(tmp_path, "v3-8", *max_batch.files(found))
    rows = csv.DictReader(table.read_text().splitlines())
    assert [row["largest_batch_per_device"] for row in rows] == ["4096", "0"]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed; pip install 'vit_jax[tpu]'",
)
def test_a_tpu_compiler_says_what_fits_and_what_not():
    (one,) = forward.create_forwards(["ViT-Ti/16"], [32], "tpu")
    where = preflight.open_slice("v3:2x2")
    small = max_batch.compile_use(one, 8, where)
    assert small.fits
    assert small.peak > 4 * one.network.num_params
    large = max_batch.compile_use(one, 2**24, where)  # 48 GiB of pixels
    assert not large.fits
    assert 15 * GIB < large.memory < 16 * GIB < large.peak
