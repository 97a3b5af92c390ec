"""What a run may change between its parts, without a run."""

import json

import pytest
from etils import epath

import runs
from vit_jax import config
from vit_jax.runs import directory

DINO = {"name": "dino", "local_views": 0}
UNLABELED = {"data": {"train_crop": "inception"}, "checkpoint": {"best": "loss"}}


def cooled(steps, cooldown=4, **sections):
    return runs.configure(
        train={"duration": f"{steps} steps", "ema": None},
        schedule={"name": "constant", "cooldown": f"{cooldown} steps"},
        **sections,
    )


def changes(step, old, new):
    record = {"step": step, "examples": 200, "config": config.to_dict(old)}
    return directory.changes(record, new)


@pytest.mark.parametrize(
    ("step", "old", "new", "fits"),
    [
        (6, (10, 4), (20, 4), True),
        (7, (10, 4), (20, 4), False),  # the old run cools down
        (6, (20, 4), (10, 4), True),
        (7, (20, 4), (10, 4), False),  # so would the new one
        (10, (20, 10), (20, 4), True),
        (11, (20, 10), (20, 4), False),
    ],
)
def test_a_length_changes_until_a_cooldown_begins(step, old, new, fits):
    found = changes(step, cooled(*old), cooled(*new))
    assert (found == "") == fits
    other = changes(step, cooled(*old), cooled(*new, optimizer={"lr": 0.5}))
    assert "optimizer.lr: 0.001 -> 0.5" in other


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({}, ""),
        ({"optimizer": {"weight_decay": 0.1, "weight_decay_end": 0.1}}, ""),
        ({"optimizer": {"weight_decay": 0.1, "weight_decay_end": 0.4}}, "weight_decay_end"),
        ({"objective": DINO | {"momentum_end": 0.996}}, ""),
        ({"objective": DINO}, "momentum_end"),
    ],
)
def test_a_length_stays_where_early_steps_depend_on_it(sections, key, tmp_path):
    old, new = (cooled(steps, **UNLABELED, **sections) for steps in (10, 20))
    assert ("train.duration" in changes(2, old, new)) == bool(key)
    if key:
        (tmp_path / "config.json").write_text(json.dumps(config.to_dict(old)))
        (tmp_path / "metrics.jsonl").write_text("{}")
        with pytest.raises(config.ConfigError, match=f"depend on the length by [a-z]+.{key}$"):
            directory.reconcile(tmp_path, new, {})


def test_a_run_has_begun_once_its_metrics_have_a_line(tmp_path):
    folder = epath.Path(tmp_path)  # as of a run in a bucket
    for text in ("", "{}\n"):
        assert not directory._has_begun(folder)
        (folder / "metrics.jsonl").write_text(text)
    assert directory._has_begun(folder)


def test_options_that_the_user_set_stay():
    cfg, given = runs.configure(), {"model.gelu": "tanh", "data.mean": (0.1,)}
    found = directory._with_options(cfg, given, {"data.mean": "0.5"})
    assert found.model.gelu == "tanh"
    assert found.data.mean == cfg.data.mean


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_run_that_began_with_weights_is_itself(channels, tmp_path):
    """From its config alone: the weights may be gone."""
    data = {"source": "synthetic", "channels": channels, "std": (0.25,)}
    data["mean"] = (0.4, 0.5, 0.6, 0.7)[:channels]
    cfg = runs.configure(init_from=str(tmp_path / "gone"), data=data)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict(cfg)))
    assert directory.reconcile(tmp_path, None, {}) == cfg
