"""Golden results: the arguments of commands, the options of configs, and losses of small runs.

    python tests/helpers/golden_runs.py commands
    python tests/helpers/golden_runs.py configs
    python tests/helpers/golden_runs.py losses

A difference that was meant shows in the commit that writes a file anew.
"""

import argparse
import contextlib
import hashlib
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "golden"
COMMANDS, CONFIGS, LOSSES = (FOLDER / x for x in ("commands.txt", "configs.txt", "losses.json"))

ADAM = {"name": "adam", "lr": 1e-3, "weight_decay": 0.1}
SGD = {"name": "sgd", "lr": 0.05}
MASKED = {"objective": {"name": "masked_patches", "target": "color", "rate": 0.5}}
# Objectives, optimizers and shardings: sections of a config in addition to BASE.
RUNS = {
    "sgd": {"optimizer": SGD},
    "adam": {"optimizer": ADAM},
    "adam-bfloat16-moments": {"optimizer": ADAM | {"moment_dtype": "bfloat16"}},
    "lion": {"optimizer": {"name": "lion", "b1": 0.9, "b2": 0.99, "lr": 1e-4}},
    "adam-replicated": {"optimizer": ADAM, "mesh": {"zero": False, "fsdp_min_size": 1}},
    "adam-fsdp": {"optimizer": ADAM, "mesh": {"fsdp": 4, "fsdp_min_size": 1}},
    "adam-accumulated": {"optimizer": ADAM, "train": {"accumulation": 2}},
    "adam-bfloat16": {"optimizer": ADAM, "model": {"dtype": "bfloat16"}},
    "sigmoid-mixup": {
        "optimizer": ADAM, "loss": {"name": "sigmoid"},
        "train": {"mixup": 0.2, "label_smoothing": 0.1},
    },
    "remat-scan": {"optimizer": SGD, "model": {"remat": "full", "unroll": 1}},
    "masked-color": {"optimizer": ADAM, **MASKED},
    "resnet": {
        "optimizer": SGD,
        "model": {"architecture": "resnet", "resnet_units": (1, 1), "resnet_width": 0.5},
    },
    "hybrid": {
        "optimizer": ADAM,
        "model": {"resnet_units": (1,), "resnet_width": 0.5, "patch_size": 1},
    },
}  # fmt: skip
# How far, relatively, losses may be from the recorded ones. On a CPU, jax 0.10.2 and 0.12.0 differ
# by at most 1.2e-7 (in ten of thirteen runs not at all), computed in bfloat16 by 1.8e-5; the rest
# is room for CPUs that sum in another order.
TOLERANCES = dict.fromkeys(RUNS, 1e-6) | {"adam-bfloat16": 1e-4}
STEPS = 12


def command_lines():
    """Yields a title for each command, and a line for each of its arguments."""
    from vit_jax import cli

    for name in cli.COMMANDS:
        yield f"vit_jax {name}"
        parser = cli.command_parser(name)
        rivals = [group._group_actions for group in parser._mutually_exclusive_groups]
        for action in parser._actions[1:]:  # after --help
            others = [one for group in rivals if action in group for one in group if one != action]
            yield f"  {argument_line(action, others)}"


def argument_line(action, others):
    """How an argument is given and read, what it is otherwise, and what it does not go with."""
    from vit_jax.cli import arguments

    readers = {reader: name for name, reader in vars(arguments).items() if callable(reader)}
    choices = action.choices and f"{{{','.join(map(str, action.choices))}}}"
    value = action.metavar or choices or ("" if action.nargs == 0 else action.dest)
    line = "=".join(filter(None, (*action.option_strings, value)))
    line += {"*": ", any number", "+": ", one or more", "?": ", optional"}.get(action.nargs, "")
    line += (
        ", adds up" if isinstance(action, (argparse._AppendAction, argparse._ExtendAction)) else ""
    )
    if action.metavar and choices:
        line += f", of {choices}"
    if action.type:
        line += f", {readers.get(action.type) or action.type.__name__.strip('_')}"
    if action.option_strings and action.required:
        line += ", required"
    if action.default is not None and action.nargs != 0:
        line += f", default {action.default!r}"
    if action.nargs == "?" and action.option_strings:
        line += f", alone {action.const!r}"
    return line + "".join(f", not with {one.option_strings[0]}" for one in others)


def config_lines():
    """Yields a line for each config name: the digest of its options that are not defaults."""
    from vit_jax import config
    from vit_jax.config import catalog

    for name in catalog.names():
        changed = config.changed(config.build(catalog.load_values(name)))
        text = json.dumps(changed, sort_keys=True, default=str)
        yield f"{name} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def losses(name):
    """The losses of a small run on eight devices."""
    import jax

    import runs
    from vit_jax.data import sources
    from vit_jax.training.build import build

    sections = {key: dict(value) for key, value in RUNS[name].items()}
    base = {
        "model": {"num_classes": None if "objective" in sections else 10, "dropout": 0.1},
        "train": {"duration": f"{STEPS} steps", "ema": None},
        "data": {"image_size": 16 if "resnet_units" in sections.get("model", {}) else 8},
    }
    if "objective" in sections:
        base["checkpoint"] = {"best": "loss"}
    for key, value in base.items():
        sections[key] = value | sections.get(key, {})
    if sections["model"].get("architecture") == "resnet":
        sections["model"] |= dict.fromkeys(("patch_size", "width", "depth", "mlp_dim", "heads"))
        sections["model"]["dropout"] = 0.0
    cfg = runs.configure(**sections)
    source = sources.open_source(cfg.data, cfg.data.train_split, num_classes=None, train=True)
    trainer = build(cfg, len(source))
    step, live, found = trainer.compile_step(), trainer.init_state(), []
    with contextlib.closing(trainer.load(source, 0, lambda: False)) as batches:
        for batch in batches:
            live, metrics = step(live, trainer.put(batch), None)
            found.append(float(jax.device_get(metrics["loss"])))
    return found


def main():
    import jax

    texts = {"commands": (COMMANDS, command_lines), "configs": (CONFIGS, config_lines)}
    if sys.argv[1] in texts:
        file, lines = texts[sys.argv[1]]
        file.write_text("".join(f"{line}\n" for line in lines()))
        return
    recorded = json.loads(LOSSES.read_text()) if LOSSES.exists() else {}
    key = f"{jax.default_backend()} jax {jax.__version__}"
    recorded[key] = {name: losses(name) for name in RUNS}
    LOSSES.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    sys.path[:0] = [str(FOLDER.parent), str(FOLDER.parents[1]), str(FOLDER.parent / "helpers")]
    import conftest  # noqa: F401  the devices and flags of the tests

    main()
