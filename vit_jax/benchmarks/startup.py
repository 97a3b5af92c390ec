"""Commands from start to end beside what does the same, or beside the imports they cannot avoid."""

import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from vit_jax import config, models, weights
from vit_jax.benchmarks import sample_images, train, turns
from vit_jax.training import run_config

MODEL, TIMM_MODEL, SIZE = "ViT-S/16", "vit_small_patch16_224", (224, 224)
ROUNDS = 5
PACKAGES = ("jax", "jaxlib", "flax", "orbax-checkpoint")
# Predicts as its documentation does; takes the weights and a photo.
TIMM_PREDICT = f"""
import sys, timm, torch
from PIL import Image
model = timm.create_model("{TIMM_MODEL}", checkpoint_path=sys.argv[1]).eval()
settings = timm.data.resolve_model_data_config(model)
transform = timm.data.create_transform(**settings, is_training=False)
with torch.inference_mode():
    logits = model(transform(Image.open(sys.argv[2]).convert("RGB"))[None])
print(logits.softmax(-1).topk(5))
"""
TIMM_LIST = "import timm; print(*timm.list_models(pretrained=True))"

Command = Sequence[str]


def write_weights(path: pathlib.Path) -> None:
    """Writes random weights of MODEL as timm's, for both programs."""
    model = models.complete(config.Model(variant=MODEL, num_classes=1000, gelu="erf"))
    network = models.create(model, image_size=SIZE)
    drawn = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: 0.02 * drawn.standard_normal(leaf.shape, np.float32),
        jax.eval_shape(network.init, jax.random.key(0)),
    )
    data = run_config.complete(
        config.Config(model=model, data=config.Data(source="synthetic", image_size=SIZE))
    ).data
    weights.save(params, weights.ModelSpec(model=model, data=data), "timm", path)


def commands(folder: pathlib.Path, peer: str | None) -> dict[str, dict[str, Command]]:
    """The programs of every piece of work by name, ours first; `peer` is a Python with timm.

    `folder` gets what they read: a photo, weights, and in `made` a run of one step.
    """
    python, ours = (*turns.PYTHON, "-c"), (*turns.PYTHON, "-m", "vit_jax")
    bare = {"python (bare)": (*python, "")}
    imports = {"import jax, flax": (*python, "import jax, flax.linen")}
    weights_file = folder / "weights.safetensors"
    write_weights(weights_file)
    (photo,) = sample_images.make(folder, 1)
    digits = (*ours, "train", "digits")
    step = ("--config.train.duration=1 steps", "--config.schedule.warmup=0 steps")
    # Made only once: it is what `evaluate digits` reads.
    turns.run((*digits, *step, f"--workdir={folder / 'made'}"))
    files = (str(weights_file), str(photo))
    timm = (lambda code, *given: {"timm": (peer, "-c", code, *given)}) if peer else lambda *_: {}
    return {
        f"predict a photo, {MODEL}": {
            turns.OURS: (*ours, "predict", f"--checkpoint={files[0]}", files[1]),
            **timm(TIMM_PREDICT, *files),
            **imports,
        },
        "evaluate digits": {
            turns.OURS: (*ours, "evaluate", f"--checkpoint={folder / 'made'}"),
            **imports,
        },
        "train digits, one step": {
            turns.OURS: (*digits, *step, f"--workdir={folder / 'new'}"),
            **imports,
        },
        "train digits --dry-run": {turns.OURS: (*digits, "--dry-run"), **imports},
        "list": {turns.OURS: (*ours, "list"), **timm(TIMM_LIST), **bare},
        "--help": {turns.OURS: (*ours, "--help"), **bare},
        "import vit_jax": {turns.OURS: (*python, "import vit_jax"), **bare},
    }


def versions(peer: str | None) -> dict[str, str]:
    """The versions of our packages and of the peer's by name."""
    found = {}
    for python, names in ((sys.executable, PACKAGES), (peer, ("torch", "timm"))):
        if python is not None:
            code = f"from importlib import metadata as m; print(*map(m.version, {names}))"
            found |= dict(zip(names, train.output(python, code).split(), strict=True))
    return found


def measure(
    peer: str | None, *, rounds: int, say: Callable[[str], None]
) -> Iterator[turns.Compared]:
    """Yields the cost of every command, whose programs an untimed start has compiled.

    Raises ConfigError if `peer` has no timm, or a program fails.
    """
    if peer is not None:
        train.Peer(name="timm", python=peer)
    with tempfile.TemporaryDirectory(prefix="vit_jax_bench_") as name:
        folder = pathlib.Path(name)

        def forget(_: str) -> None:
            # A run that is there would be resumed.
            shutil.rmtree(folder / "new", ignore_errors=True)

        for work, given in commands(folder, peer).items():
            say(work)
            programs: dict[str, Callable[[], object]] = {
                label: lambda command=command: turns.run(command)
                for label, command in given.items()
            }
            for program in programs.values():
                forget("")
                program()
            results = turns.take(programs, rounds=rounds, before=forget)
            yield turns.Compared(work=work, unit="starts", amount=1, results=results)


def title() -> list[str]:
    """Lines about the measurement and its machine."""
    return [
        "each command from its start to its end, its programs compiled before; a command without "
        "a peer that does the same stands beside the imports that it needs",
        turns.machine(),
    ]
