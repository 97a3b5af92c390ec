"""Small transfers for tests: a plan on digits, cells run in this process or only pretended."""

from vit_jax.studies import transfer, worker

NAME = "home/ViT-digits"
TINY = {
    "init_from": "none", "model.width": "16", "model.depth": "1", "model.mlp_dim": "16",
    "model.heads": "2", "model.unroll": "1", "data.image_size": "8", "train.batch_size": "32",
    "train.duration": "12 steps", "schedule.warmup": "2 steps", "checkpoint.every": "3 steps",
    "logging.every": "1", "logging.tensorboard": "false",
}  # fmt: skip
MACHINE = {
    "device": "abacus", "devices": 1, "host": "here", "cores": 1, "commit": None,
    "date": "2026-11-26", "versions": {"jax": "1"},
}  # fmt: skip
RATES, SEEDS = (0.003, 0.03), (0, 1)


def plan(reference=NAME, *, rates=RATES, choose_seeds=(0,), seeds=SEEDS, tiny=False, **overrides):
    """A plan; overrides have `__` where options have a dot."""
    options = {key.replace("__", "."): value for key, value in overrides.items()}
    return transfer.create_plan(
        reference, TINY | options, rates=rates, choose_seeds=choose_seeds, seeds=seeds, tiny=tiny
    )


def flags(**overrides):
    """The same as flags of the command line."""
    options = TINY | {key.replace("__", "."): value for key, value in overrides.items()}
    return [f"--config.{key}={value}" for key, value in options.items()]


def here(cells, workdir, shares, *, started, ended, watch):
    """Runs cells in this process."""
    for cell in cells:
        started(cell)
        ended(cell, 1.0, worker.train_cell(cell.cfg, workdir, cell.directory))


def pretending(results, log=None):
    """A stand-in for `processes.run`: the top-1 of each directory, or why it failed, is given."""

    def run(cells, workdir, shares, *, started, ended, watch):
        for cell in cells:
            if log is not None:
                log.append(cell.directory)
            value = results[cell.directory]
            started(cell)
            if isinstance(value, str):
                ended(cell, 1.0, {"state": "failed", "why": value, "machine": MACHINE})
            else:
                measured = {"top1": value, "loss": 1 - value, "count": 10}
                done = {"state": "done", "steps": 12, "results": measured, "machine": MACHINE}
                ended(cell, 1.0, done)

    return run
