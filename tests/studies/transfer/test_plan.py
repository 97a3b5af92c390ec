"""Which cells a transfer consists of."""

import pytest
from PIL import Image

import sweeps
from vit_jax import config
from vit_jax.studies import devices, transfer


def test_cells_of_the_choosing_stage_see_no_test_image():
    plan = sweeps.plan(rates=(), evaluation__tasks="imagenet-v2", evaluation__fewshot="pets")
    assert [cell.directory for cell in plan.choosing()] == [
        "choose/vit-lr0.06", "choose/vit-lr0.12",
    ]  # fmt: skip
    for cell in plan.choosing():
        split = {"name": "validation", "split": "train[80%:]"}
        assert cell.facts == {"stage": "choose", "setup": "vit", "split": split}
        assert cell.cfg.seed == 0
        assert cell.alike
        assert cell.cfg.data.train_split == "train[:80%]"
        assert cell.cfg.data.eval_split == "train[80%:]"
        assert cell.cfg.evaluation == config.Evaluation(every=None)
        assert f"lr{cell.cfg.optimizer.lr}" in cell.directory
    final = plan.final(plan.candidates[0])
    assert [cell.directory for cell in final] == ["final/seed0", "final/seed1"]
    for seed, cell in enumerate(final):
        assert (cell.cfg.seed, cell.cfg.optimizer.lr) == (seed, 0.06)
        assert (cell.cfg.data.train_split, cell.cfg.data.eval_split) == ("train", "test")
        assert cell.cfg.evaluation.tasks == ("imagenet-v2",)
        assert cell.cfg.evaluation.every is None  # once, at the end


def test_rates_are_tried_with_every_seed_of_the_choice():
    options = {"init_from": "none", "train.duration": "12 steps", "schedule.warmup": "2 steps"}
    plan = transfer.create_plan("home/ResNet-digits", options, seeds=sweeps.SEEDS)
    assert plan.choose_seeds == (0, 1)  # of the config, whose dataset is small
    assert [cell.directory for cell in plan.choosing()] == [
        "choose/vit-lr0.06-seed0", "choose/vit-lr0.12-seed0",
        "choose/vit-lr0.06-seed1", "choose/vit-lr0.12-seed1",
    ]  # fmt: skip
    assert [cell.cfg.seed for cell in plan.choosing()] == [0, 0, 1, 1]
    assert all(cell.cfg.data.eval_split == "train[80%:]" for cell in plan.choosing())
    assert [cell.directory for cell in plan.final(plan.candidates[-1])] == [
        "final/seed0", "final/seed1",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["finetune/R50x1-jft7ep-cifar100", "vtab/ViT-L_16-i21k-dtd"])
def test_the_papers_rows_are_one_run_a_rate_unless_the_user_asks(name):
    plan = transfer.create_plan(name, {"init_from": "none"}, rates=(0.01, 0.03))
    assert plan.choose_seeds == (0,)
    assert [cell.lr for cell in plan.choosing()] == [one.lr for one in plan.candidates]
    plan = transfer.create_plan(
        name, {"init_from": "none"}, rates=(0.01, 0.03), choose_seeds=(3, 4)
    )
    assert len(plan.choosing()) == 2 * len(plan.candidates)


def test_a_resnet_tries_the_setup_of_big_transfer():
    plan = transfer.create_plan("finetune/R50x1-jft7ep-cifar100", {})
    *ours, bit = plan.candidates
    assert [one.lr for one in ours] == [0.001, 0.003, 0.01, 0.03]
    assert plan.choosing_cell(bit, 0).directory == "choose/bit-lr0.003"
    for cell in (bit, *plan.final(bit)):
        cfg = cell.cfg
        assert (cfg.optimizer.lr, cfg.optimizer.name, cfg.optimizer.momentum) == (0.003, "sgd", 0.9)
        assert (str(cfg.train.duration), cfg.train.mixup) == ("10000 steps", 0.1)
        assert (cfg.schedule.name, cfg.schedule.drops) == ("step", (0.3, 0.6, 0.9))
        assert (cfg.train.batch_size, cfg.train.clip_norm) == (512, None)
        assert cfg.optimizer.weight_decay == 0.0
        assert cfg.schedule.warmup.amount > 0
    assert bit.cfg.data.train_split == "train[:98%]"
    assert ours[0].cfg.schedule.name == "cosine"


def test_rates_and_seeds_count_once():
    """From Python too: one run under two names would have an interval of 0."""
    plan = sweeps.plan("digits", rates=(0.1, 0.3, 0.1), seeds=(4, 4), choose_seeds=(1, 2, 1))
    assert [one.lr for one in plan.candidates] == [0.1, 0.3]
    assert (plan.seeds, plan.choose_seeds) == ((4,), (1, 2))
    for given, says in [
        ({"rates": (0.1, float("nan"))}, "rates=nan: must be finite and above 0"),
        ({"rates": (0,)}, "rates=0: must be finite and above 0"),
        ({"seeds": (-1,)}, "seeds=-1: must be a whole number, from 0 to 4294967295"),
        ({"choose_seeds": (-1,)}, "choose_seeds=-1: must be a whole number, from 0 to 4294967295"),
    ]:
        with pytest.raises(config.ConfigError, match=f"^{says}$"):
            sweeps.plan("digits", **given)


def test_one_rate_is_not_chosen():
    plan = transfer.create_plan("vtab/ViT-L_16-i21k-dtd", {"init_from": "none"})
    assert plan.choosing() == ()
    assert [one.lr for one in plan.candidates] == [0.01]
    assert plan.task == "vtab/dtd"
    (first, *_) = plan.final(plan.candidates[0])
    assert first.cfg.data.train_split == "train[:800]+validation[:200]"
    message = "^choose_seeds=0,1: digits has nothing to choose among but lr=0.1; give several rates"
    with pytest.raises(config.ConfigError, match=message):
        sweeps.plan("digits", rates=(0.1,), choose_seeds=(0, 1))


def test_a_config_without_a_protocol_holds_out_a_tenth():
    plan = sweeps.plan("digits")
    assert plan.candidates[0].cfg.data.train_split == "train[:90%]"
    assert plan.candidates[0].cfg.data.eval_split == "train[90%:]"
    with pytest.raises(config.ConfigError, match=r"digits names no learning rates.*--rates=0.003"):
        sweeps.plan("digits", rates=())
    with pytest.raises(config.ConfigError, match=r"^data.train_split=train\[:50%\]: .* whole"):
        sweeps.plan("digits", data__train_split="train[:50%]")


@pytest.mark.parametrize("validation", ["val", None])
def test_a_folder_with_a_validation_split_is_chosen_on_it(validation, tmp_path):
    for split in filter(None, ("train", validation, "test")):
        place = tmp_path / split / "cat"
        place.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(place / "0.png")
    name, options = "adapt/ViT-S_16-probe", {"init_from": "none", "data.root": str(tmp_path)}
    plan = transfer.create_plan(name, options)
    expected = ("train", "val") if validation else ("train[:90%]", "train[90%:]")
    for cell in plan.choosing():
        assert (cell.cfg.data.train_split, cell.cfg.data.eval_split) == expected
    (final,) = plan.final(plan.candidates[0])
    assert (final.cfg.data.train_split, final.cfg.data.eval_split) == ("train", "test")
    several = transfer.create_plan(name, options, seeds=(3, 4))
    assert [cell.cfg.seed for cell in several.final(several.candidates[0])] == [3, 4]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("optimizer.lr", "differs between cells; set --rates"),
        ("seed", "differs between cells; set --seeds"),
        ("data.train_split", r"home/ViT-digits defines what is held out.*train\[80%:\]"),
    ],
)
def test_what_the_protocol_decides_cannot_be_set(key, says):
    with pytest.raises(config.ConfigError, match=rf"^{key}=1: {says}"):
        transfer.create_plan(sweeps.NAME, {key: "1"})


@pytest.mark.parametrize(
    ("key", "value", "other"),
    [("checkpoint.best", "f1", "auto"), ("checkpoint.best", "loss", "auto"),
     ("checkpoint.patience", "2", "none")],
)  # fmt: skip
def test_what_a_run_that_is_measured_once_does_not_read_is_refused(key, value, other):
    """Otherwise f1 would be called unmeasured, and patience would fail in every run."""
    given = {key: value, "evaluation.metrics": "f1", "evaluation.every": "5 steps"}
    with pytest.raises(config.ConfigError, match=f"^{key}={value}: .* set {key}={other}$"):
        transfer.create_plan("digits", given, rates=(0.1,))


def test_shares_of_the_devices(monkeypatch):
    def shares(platform, count, parallel, visible=""):
        monkeypatch.setattr(devices, "find_devices", lambda: (platform, count))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return devices.shares(parallel)

    assert shares("gpu", 4, 1) == [{}]
    assert shares("cpu", 8, 3) == [{}] * 3
    assert shares("gpu", 4, 2) == [{"CUDA_VISIBLE_DEVICES": x} for x in ("0,1", "2,3")]
    assert shares("gpu", 2, 2, "5,7") == [{"CUDA_VISIBLE_DEVICES": x} for x in ("5", "7")]
    assert shares("rocm", 2, 2) == [{"HIP_VISIBLE_DEVICES": x} for x in ("0", "1")]
    tpu = shares("tpu", 4, 2)
    assert [one["TPU_VISIBLE_CHIPS"] for one in tpu] == ["0,1", "2,3"]
    assert {one["TPU_CHIPS_PER_PROCESS_BOUNDS"] for one in tpu} == {"1,2,1"}
    with pytest.raises(config.ConfigError, match="^--parallel=3: there are 2 gpus; at most 2$"):
        shares("gpu", 2, 3)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    with pytest.raises(config.ConfigError, match="^transfer: its cells run on one host"):
        devices.shares(1)


SEARCH = {"optimizer.weight_decay": ("0", "0.1"), "data.randaugment": ("none", "2,5", "2,10")}
TOY = {"init_from": "none", "train.duration": "12 steps", "schedule.warmup": "2 steps"}


def search(**options):
    given = {"rates": (0.06,), "search": SEARCH, "choose_seeds": (0,)} | options
    return transfer.create_plan("home/ResNet-digits", TOY, **given)


def test_a_search_tries_every_combination_and_trains_the_chosen_one():
    plan = search(rates=(0.06, 0.12))
    assert [(one.setup, one.lr) for one in plan.candidates] == [
        (f"optimizer.weight_decay={decay} data.randaugment={augment}", lr)
        for decay in ("0", "0.1") for augment in ("none", "2,5", "2,10") for lr in (0.06, 0.12)
    ]  # fmt: skip
    last = plan.candidates[-1]
    assert (last.cfg.optimizer.weight_decay, last.cfg.data.randaugment) == (0.1, (2, 10))
    directories = [cell.directory for cell in plan.choosing()]
    assert directories[0] == "choose/try0-lr0.06"
    assert directories[-1] == "choose/try5-lr0.12"
    assert len(set(directories)) == 12
    final = plan.final(last)[0].cfg
    assert (final.optimizer.weight_decay, final.optimizer.lr) == (0.1, 0.12)
    assert final.data.eval_split == "test"


def test_a_size_that_is_tried_shows_as_much_of_an_image():
    plan = transfer.create_plan(
        "vtab/ViT-H_14-jft-caltech101",
        {"init_from": "none", "model.patch_size": "2"},
        search={"data.image_size": ("256", "448")},
    )
    boxes = [one.cfg.data.before_crop for one in plan.candidates]
    assert boxes == [(299, 299), (523, 523)]  # 7/6 of each


def test_a_random_search_draws_some_by_seed():
    every = [one.setup for one in search().candidates]
    drawn = [one.setup for one in search(draws=3).candidates]
    assert len(set(drawn) & {*every}) == 3
    assert drawn != every[:3]
    assert [one.setup for one in search(draws=3).candidates] == drawn
    assert [one.setup for one in search(draws=99).candidates] == every


def test_values_of_a_search_are_such_or_texts():
    given = {"train.mixup": (0.0, 0.12345678), "data.image_size": ((8, 8),), "data.flip": [True]}
    texts = {
        "train.mixup": ("0", "0.12345678"),
        "data.image_size": ("8x8",),
        "data.flip": ("true",),
    }
    found = [[one.cfg for one in search(search=tried).candidates] for tried in (given, texts)]
    assert found[0] == found[1]
    assert found[0][-1].train.mixup == 0.12345678


@pytest.mark.parametrize(
    ("tried", "message"),
    [
        ({"optimizer.decay": ("1",)}, "optimizer.decay: unknown key"),
        ({"optimizer.lr": ("1", "2")}, "optimizer.lr=1,2: differs between cells; set --rates"),
        ({"seed": ("1", "2")}, "seed=1,2: differs between cells; set --seeds"),
        ({"train.duration": ("5 steps",)}, "train.duration=12 steps is set too"),
        ({"train.mixup": ("0", "0")}, "--try=train.mixup=0,0: needs values, each once"),
        (
            {"data.eval_split": ("train", "test")},
            "--try=data.eval_split=train,test: all are compared on the same images, in the same "
            "way; set --config.data.eval_split for all",
        ),
        ({"evaluation.metrics": ("f1", "auroc")}, "set --config.evaluation.metrics for all"),
        ({"train.mixup": ("-1",)}, "train.mixup=-1"),
        (
            {
                "optimizer.name": ("adafactor", "lion"),
                "optimizer.weight_decay_rate": ("0.1", "0.2"),
            },
            "optimizer.weight_decay_rate=0.1: set optimizer.weight_decay, which is multiplied",
        ),
        ({"train.mixup": "0,0.2"}, "--try=train.mixup=0,0.2: must be a list of values"),
        ({"train.mixup": 0.2}, "--try=train.mixup=0.2: must be a list of values"),
        (["train.mixup"], "must be a dict of values by dotted name"),
        ({"train.mixup": (0, "0")}, "--try=train.mixup=0,0: needs values, each once"),
        ({"seed2": (), "train.mixup": ("0",)}, "needs values"),
        ({k: tuple(map(str, range(40))) for k in ("a", "b")}, "1,600 combinations; at most 1,000"),
    ],
)
def test_mistakes_of_a_search(tried, message):
    with pytest.raises(config.ConfigError, match=message):
        search(search=tried)


def test_a_name_or_a_plan_is_transferred(tmp_path):
    with pytest.raises(config.ConfigError, match="^name_or_plan: must be text or a path, not int$"):
        transfer.transfer(3, tmp_path)


def test_a_transfer_from_python_is_that_of_the_command(monkeypatch, tmp_path):
    given = {
        "rates": (0.1,), "search": {"train.mixup": ("0", "0.2")}, "draws": 1,
        "choose_seeds": (3,), "seeds": (4, 5),
    }  # fmt: skip
    study, done = transfer.study, []
    monkeypatch.setattr(study, "create_plan", lambda *args, **more: done.append((args, more)) or 7)
    monkeypatch.setattr(study, "perform", lambda *args: done.append(args) or {})
    monkeypatch.setattr(study, "shares", lambda parallel: [parallel])
    transfer.transfer("digits", tmp_path, {"seed": 1}, **given, parallel=2, smoke=True)
    assert done == [
        (("digits", {"seed": 1}), given | {"tiny": True}), (7, tmp_path, [2]),
    ]  # fmt: skip
    with pytest.raises(config.ConfigError, match="run `vit_jax train home/ResNet-half` first"):
        transfer.transfer("home/ResNet-digits", tmp_path)


def test_devices_are_the_last_words_of_the_process_that_looks_for_them(monkeypatch):
    monkeypatch.setattr(devices.backend, "ask", lambda code: ["one", "more", "warning", "gpu", "4"])
    assert devices.find_devices() == ("gpu", 4)


def test_files_in_place_of_the_data_of_a_row_are_cut_by_their_own_splits(tmp_path):
    for split in ("train", "val", "test"):
        (tmp_path / split).mkdir()
    given = {"data.source": "folder", "data.root": str(tmp_path), "init_from": "none"}
    plan = transfer.create_plan("finetune/ViT-B_16-i21k-cifar10", given, rates=(0.1, 0.2))
    (chosen, _), (final, *_) = plan.choosing(), plan.final(plan.candidates[0])
    assert (chosen.cfg.data.train_split, chosen.cfg.data.eval_split) == ("train", "val")
    assert (final.cfg.data.train_split, final.cfg.data.eval_split) == ("train", "test")
    assert plan.task == "folder"


def test_each_run_of_a_search_has_the_measure_that_chooses():
    overrides = {"train.label_smoothing": "0"}
    search = {"objective.name": ["supervised", "mae"]}
    with pytest.raises(config.ConfigError, match=r"objective.name=mae: transfer chooses by top-1"):
        transfer.create_plan("digits", overrides, rates=[0.001], search=search)


def test_numbers_have_no_top1_to_choose_by(tmp_path):
    (tmp_path / "train.csv").write_text("image,age\na.png,3\n")
    given = {
        "data.source": "csv", "data.root": str(tmp_path), "data.targets": "age",
        "loss.name": "mse", "init_from": "none",
    }  # fmt: skip
    with pytest.raises(config.ConfigError, match="transfer chooses by top-1, and numbers have"):
        transfer.create_plan("image_folder", given, rates=(0.1,))


def test_an_untrained_head_has_no_top1_to_choose_by():
    given = {
        "objective.name": "distillation", "objective.target": "features", "objective.teacher": "x",
        "train.label_smoothing": 0,
    }  # fmt: skip
    with pytest.raises(config.ConfigError, match="chooses by top-1, and this trains no head"):
        transfer.create_plan("digits", given, rates=(0.1,))
