import dataclasses

import jax
import pytest

import runs
from preflight_reports import create_report, tiny
from vit_jax import config, models, preflight
from vit_jax.preflight import collectives, program
from vit_jax.training.build import build
from vit_jax.utils.messages import memory_text

# Two layers in a loop that turns three times, and one collective outside of it.
HLO = """\
HloModule jit_step, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%body (p: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %gathered = bf16[32,8]{1,0} all-gather(%shard), dimensions={0}
  %start = (bf16[4,8]{1,0}, bf16[4,8]{1,0}) all-reduce-start(%a, %b), to_apply=%add
  %done = (bf16[4,8]{1,0}, bf16[4,8]{1,0}) all-reduce-done(%start)
}

%all-reduce-scatter.7 (q: bf16[64,8]) -> bf16[8,8] {
  %whole = (bf16[64,8]{1,0}, bf16[8]{0}) all-reduce(%q, %r), replica_groups={{0,1}}, to_apply=%add
  ROOT %own = bf16[8,8]{1,0} dynamic-slice(%whole, %i, %zero), dynamic_slice_sizes={8,8}
}

%condition (p: (s32[], bf16[4,8])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (p0: f32[16]) -> f32[16] {
  %w = (s32[], bf16[4,8]) while(%t), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
  %g = (f32[2]{0}, f32[16]{0}) all-gather-start(%p0), dimensions={0}
  %c = bf16[6]{0} all-gather(%z), frontend_attributes={chain_id="1"}
  %d = bf16[6]{0} all-gather(%z), frontend_attributes={chain_id="1"}
  %e = bf16[6]{0} all-gather(%z), frontend_attributes={chain_id="2"}
  %f = bf16[8,8]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.7
  %s = f32[3]{0} reduce-scatter(%y), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %t = f32[5]{0} reduce-scatter(%y), replica_groups=[4,2]<=[8], to_apply=%add
  %u = f32[7]{0} reduce-scatter(%y), replica_groups=mesh['axis_0'=2,'axis_1'=4], \
device_ids=([2,4]T(1,0)) {'axis_1'}, to_apply=%add
  ROOT %r = f32[16]{0} all-reduce(%p0), to_apply=%add
}
"""


def test_collectives_count_as_often_as_their_loop_turns_and_as_whole_arrays():
    expected = {
        "all-reduce": {"count": 3 + 1, "bytes": 3 * 2 * (4 * 8 * 2) + 16 * 4},
        "all-gather": {"count": 3 + 1 + 2, "bytes": 3 * (32 * 8 * 2) + 16 * 4 + 2 * 6 * 2},
        "reduce-scatter": {
            "count": 4,
            "bytes": (64 * 8 + 8) * 2 + 4 * 3 * 4 + 2 * 5 * 4 + 4 * 7 * 4,
        },
    }
    assert collectives.count_collectives(collectives.read_transfers(HLO)) == expected
    # The TPU compiler leaves the number of turns to the condition.
    silent = HLO.replace('backend_config={"known_trip_count":{"n":"3"}}', "metadata={}")
    silent = silent.replace("  ROOT %less", "  %n = s32[]{:T(256)} constant(3)\n  ROOT %less")
    assert collectives.count_collectives(collectives.read_transfers(silent)) == expected


# As the TPU compiler schedules: a pair with arithmetic between, one that no arithmetic is beside,
# a gather that passes through two fusions, two pairs at once, and a loop.
SCHEDULE = """\
HloModule jit_step, is_scheduled=true

%gathering.1 (p: bf16[4,8]) -> bf16[32,8] {
  %c = bf16[6]{0} all-gather(%p), frontend_attributes={chain_id="1"}
}

%gathering.2 (p: bf16[4,8]) -> bf16[32,8] {
  %d = bf16[6]{0} all-gather(%p), frontend_attributes={chain_id="1"}
}

%sum (p: bf16[8]) -> bf16[1] {
  %e = bf16[1]{0} reduce-scatter(%p), replica_groups=[1,8]<=[8], to_apply=%add
}

%body (p: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %ga = (bf16[2]{0}, bf16[10]{0}) all-gather-start(%p)
  %la = bf16[8]{0} fusion(%x), calls=%other, backend_config={"estimated_cycles":"5"}
  %gb = bf16[10]{0} all-gather-done(%ga)
}

%condition (p: (s32[], bf16[4,8])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (p0: f32[16]) -> f32[16] {
  %s1 = (f32[2]{0}, f32[16]{0}) all-gather-start(%p0), dimensions={0}
  %f1 = f32[8]{0} fusion(%p0), kind=kOutput, calls=%other, backend_config={"estimated_cycles":"30"}
  %d1 = f32[16]{0} all-gather-done(%s1)
  ROOT %r = f32[16]{0} all-reduce(%p0), to_apply=%add, backend_config={"flag":"0"}
  %f2 = f32[8]{0} fusion(%p0), calls=%gathering.1, backend_config={"estimated_cycles":"10"}
  %f3 = f32[8]{0} fusion(%f2), calls=%gathering.2, backend_config={"estimated_cycles":"20"}
  %s2 = ((bf16[8]{0}), bf16[1]{0}) async-start(%p0), calls=%sum
  %u2 = ((bf16[8]{0}), bf16[1]{0}) async-update(%s2), calls=%sum
  %s3 = (f32[1]{0}, f32[12]{0}) all-gather-start(%p0), dimensions={0}
  %f4 = f32[8]{0} fusion(%p0), calls=%other, backend_config={"estimated_cycles":"16"}
  %d2 = bf16[1]{0} async-done(%u2), calls=%sum
  %d3 = f32[12]{0} all-gather-done(%s3)
  %w = (s32[], bf16[4,8]) while(%t), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"4"}}
  %f5 = f32[8]{0} copy(%f4), backend_config={"estimated_cycles":"4"}
}
"""


def test_what_runs_beside_a_collective_is_what_the_schedule_puts_there():
    total = 30 + 10 + 20 + 16 + 4 * 5 + 4
    found = [
        (one.kind, one.bytes, one.count, pytest.approx(one.beside * total))
        for one in collectives.read_transfers(SCHEDULE)
    ]
    assert found == [
        ("all-gather", 64, 1, 30),
        ("all-reduce", 64, 1, 0),
        ("all-gather", 12, 1, 10 + 20),
        ("reduce-scatter", 16, 1, 16 * 16 / (16 + 48)),  # what runs beside two, by their bytes
        ("all-gather", 48, 1, 16 * 48 / (16 + 48)),
        ("all-gather", 20, 4, 5),
    ]


def test_what_a_sparse_core_moves_runs_beside_the_arithmetic_of_the_others():
    text = """
%called (p: bf16[8]) -> bf16[1] {
  ROOT %r = bf16[1]{0} reduce-scatter(%p), replica_groups=[1,8]<=[8], to_apply=%add
}

ENTRY %main (p0: bf16[8]) -> bf16[1] {
  %n = s32[]{:S(2)} custom-call(), custom_call_target="PrepareAsyncCallStart"
  %s = ((bf16[8]{0}, token[]), bf16[1]{0}) call-start(%p0, %n), \
async_execution_thread="sparsecore", to_apply=%called
  %f = f32[8]{0} fusion(%x), calls=%other, backend_config={"estimated_cycles":"30"}
  %d = bf16[1]{0} call-done(%s)
  %c = f32[8]{0} copy(%f), backend_config={"estimated_cycles":"10"}
}
"""
    (one,) = collectives.read_transfers(text)
    assert one == ("reduce-scatter", 16, 1, 0.75)


@pytest.fixture(scope="module")
def here():
    return preflight.open_slice("cpu")


@pytest.mark.slow
def test_report_of_a_step_on_eight_devices(here):
    cfg = tiny(mesh={"zero": False})
    report = preflight.measure(cfg, here, examples=200)
    model = models.create(cfg.model, image_size=(8, 8), channels=1)
    assert report.fits
    assert (report.devices, report.batch, report.global_batch) == (8, 4, 32)
    assert report.steps == 25  # 4 epochs of 200 images, 32 at a time
    assert report.params == 4 * model.num_params
    # Two moments, two counters, and the average of the parameters, which is kept besides.
    assert report.optimizer == 3 * 4 * model.num_params + 4
    assert report.model_flops == 3 * model.flops * 4
    # The rest of XLA's count is softmax, norms, dropout and Adam, of which a tiny model has much.
    assert 1 < report.compiler_flops / report.model_flops < 3
    assert set(report.collectives) == {"all-reduce"}
    assert report.collectives["all-reduce"]["bytes"] >= report.params
    assert report.peak >= report.params + report.optimizer
    tokens = (8 // cfg.model.patch_size[0]) ** 2
    kept = report.batch * tokens * cfg.model.mlp_dim * cfg.model.depth  # what GELU's gradient needs
    assert report.activations >= 4 * kept


@pytest.mark.slow
def test_what_a_loop_hides_is_not_reported(here):
    whole = preflight.measure(tiny(model={"unroll": 2}), here, 200)
    assert whole.bytes_accessed is not None
    parts = tiny(model={"unroll": 2}, train={"accumulation": 2})
    assert preflight.measure(parts, here, 200).bytes_accessed is None
    assert preflight.measure(tiny(), here, 200).bytes_accessed is None  # loops over its layers


@pytest.mark.slow
def test_split_parameters_are_gathered_and_take_an_eighth(here):
    whole = preflight.measure(tiny(mesh={"zero": False}), here, 200)
    for fsdp in (1, 8):
        split = preflight.measure(tiny(mesh={"fsdp": fsdp, "fsdp_min_size": 0}), here, 200)
        assert "all-gather" in split.collectives
        assert split.params < whole.params / 4
        assert split.optimizer < whole.optimizer / 4


def test_batch_that_does_not_divide_is_one_line(here):
    cfg = tiny(train={"batch_size": 36})
    with pytest.raises(config.ConfigError, match="not a multiple of 8 devices"):
        preflight.measure(cfg, here, 200)


def test_classes_must_be_known(here):
    with pytest.raises(config.ConfigError, match="set the number of classes"):
        preflight.measure(preflight.prepare_config(runs.configure()), here, 200)


@pytest.mark.slow
def test_what_does_not_fit_says_by_how_much(here):
    small = dataclasses.replace(here, memory=20_000.0)
    report = preflight.measure(tiny(), small, 200)
    assert not report.fits
    text = dict(preflight.lines(report, 0.4))["memory per device"]
    assert text.startswith("does not fit: ")
    assert f"{memory_text(report.peak - 20_000)} too much" in text


@pytest.mark.slow
def test_flops_of_a_step_do_not_depend_on_loops():
    def count(**sections):
        sections["model"] = {"dtype": "float32", "dropout": 0.0} | sections.get("model", {})
        cfg = tiny(**sections)
        return program.step_flops(build(cfg, 200, devices=jax.devices()[:1]))

    plain = count()
    assert count(model={"unroll": 2}) == plain
    assert count(train={"accumulation": 2}) == plain
    # Recomputing the forward pass adds a third of the arithmetic of the layers.
    assert 1.15 < count(model={"remat": "full"}) / plain < 1.34


def test_bounds_and_length_of_a_run_by_hand():
    report = create_report()
    assert report.bounds() == pytest.approx({"compute": 0.15, "memory": 0.2, "links": 0.02})
    assert report.run(0.5) == pytest.approx(
        {
            "step_seconds": 0.2,
            "days": 0.2,
            "core_days": 1.6,
            "chip_hours": 19.2,
            "images_per_second": 160.0,
        }
    )
    lines = dict(preflight.lines(report, 0.5))
    assert "by memory" in lines["roofline"]
    assert "cost" not in lines
    assert dict(preflight.lines(report, 0.5, 1.25))["cost"] == "24 at 1.25 per chip and hour"
    assert preflight.as_dict(report, 0.5, 1.25)["whole_run"]["cost"] == pytest.approx(24.0)
    assert "cost" not in preflight.as_dict(report, 0.5)["whole_run"]
    (_, _, row) = preflight.markdown([report], 0.5, {"a": None}, 1.25)
    assert "; 2; 24 |" in row
    small = dict(preflight.lines(dataclasses.replace(report, steps=1), 0.405, 0.5))
    (_, _, row) = preflight.markdown([dataclasses.replace(report, steps=1)], 0.405, {}, 0.5)
    assert "at 40.5% of peak" in small
    assert small["whole run"] == "1 steps, 2.9e-06 days, 2.3e-05 core-days"
    assert small["cost"] == "0.00014 at 0.5 per chip and hour"
    assert "; 2.3e-05; 0.00014 |" in row
    unknown = create_report(peak_flops=None, bytes_accessed=None)
    assert unknown.bounds() == pytest.approx({"links": 0.02})
    assert unknown.run(0.5) is None
    assert dict(preflight.lines(unknown, 0.5, 1.25))["cost"].startswith("not known")


def test_programs_are_the_same_whatever_the_rate_and_the_length():
    same = program.same_program(tiny())
    assert program.same_program(tiny(optimizer={"lr": 0.5}, train={"duration": 7})) == same
    assert program.same_program(tiny(model={"dropout": 0.0})) != same
    assert program.same_program(tiny(train={"clip_norm": None})) != same
    assert program.same_program(tiny(data={"image_size": 16})) != same
    assert program.same_program(tiny(data={"depth": 16})) != same
    assert program.same_program(tiny(data={"flip": True})) == same
    chosen = [program.same_program(tiny(model={"unroll": None, "depth": n})) for n in (1, 2)]
    assert ["model.unroll" in one for one in chosen] == [False, True]


def test_data_need_not_be_here():
    cfg = config.build(
        {"model": {"variant": "ViT-Ti/16", "num_classes": 3}, "data": {"source": "folder"}}
    )
    assert preflight.prepare_config(cfg).model.depth == 12
    with pytest.raises(config.ConfigError, match="nearest"):
        preflight.prepare_config(config.build({"model": {"variant": "ViT-C/16"}}))
