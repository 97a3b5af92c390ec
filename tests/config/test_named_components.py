"""Evaluators and loggers that a config names, and that are none or cannot go together."""

import pytest

import runs
from vit_jax import config, train_loop
from vit_jax.config import components


@components.register("evaluator", "norm_of_parameters")
def norm_of_parameters(run):
    return lambda params, *, stop: {"norm": 1.0}


def train(workdir, evaluators, loggers):
    cfg = runs.configure(
        train={"duration": "4 steps"},
        evaluation={"every": None, "evaluators": evaluators},
        logging={"every": 1, "tensorboard": False, "loggers": loggers},
    )
    return train_loop.train(cfg, workdir)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    ("evaluators", "loggers", "message"),
    [
        (("norm_of_params",), (), "evaluation.evaluators=norm_of_params: no such evaluator"),
        (("norm_of_parameters", "norm_of_parameters"), (), "other metrics called norm"),
        (("masked_patches",), (), "needs objective.name=masked_patches"),
        ((), ("comet",), "logging.loggers=comet: no such logger"),
    ],
)
def test_mistakes_name_the_option(tmp_path, evaluators, loggers, message):
    with pytest.raises(config.ConfigError, match=message):
        train(tmp_path, evaluators, loggers)
