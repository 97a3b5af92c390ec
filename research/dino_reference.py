"""Twenty steps of a tiny DINO by the authors' own code, as losses to compare with.

Clone github.com/facebookresearch/dino (Apache-2.0; read at 7c446df), and with PyTorch:

    python -m research.dino_reference CLONE > tests/fixtures/dino.json

Everything computes in float64. Weights and crops are functions of their names and numbers, made
without torch, so that a test can make them too.
"""

import argparse
import json
import math
import sys
import types
import zlib
from typing import Any

import numpy as np

BATCH, STEPS, SMALL_VIEWS = 4, 20, 3
SIZE, SMALL, PATCH = 16, 8, 4
WIDTH, DEPTH, HEADS, HIDDEN, BOTTLENECK, PROTOTYPES = 16, 2, 2, 32, 8, 24
LR, LR_END, DECAY, DECAY_END, MOMENTUM, CLIP = 2e-3, 1e-4, 0.04, 0.4, 0.9, 0.3
TEMPERATURES, WARMUP, FROZEN = (0.04, 0.07), 5, 3
CASES = {"prototypes of length 1": True, "lengths that train": False}  # norm_last_layer


def crops(step: int) -> dict[str, np.ndarray]:
    """The views of a step by their entry in a batch, uint8 (B, n, H, W, 3) or (B, H, W, 3)."""
    rng = np.random.default_rng(step)
    large, small = (BATCH, SIZE, SIZE, 3), (BATCH, SMALL_VIEWS, SMALL, SMALL, 3)
    shapes = {"global_1": large, "global_2": large, "local": small}
    return {name: rng.integers(0, 256, shape, np.uint8) for name, shape in shapes.items()}


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The initial value of a parameter of the authors' modules, float64."""
    drawn = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
    if name.endswith("weight_g"):
        return np.ones(shape)
    if "norm" in name and name.endswith("weight"):
        return 1 + 0.1 * drawn
    return drawn * (
        0.1 if len(shape) < 2 or name.endswith("embed") else math.prod(shape[1:]) ** -0.5
    )


def reference(clone: str, norm_last_layer: bool) -> dict[str, Any]:
    """The losses of every step, and sums over the center and the teacher at the end."""
    import torch  # pyright: ignore[reportMissingImports]
    import torch.distributed  # pyright: ignore[reportMissingImports]

    # The authors' script imports what only its data and other networks need.
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms",
                 "torchvision.models"):  # fmt: skip
        sys.modules.setdefault(name, types.ModuleType(name))
    tv: Any = sys.modules["torchvision"]
    tv.datasets, tv.transforms, tv.models = (
        sys.modules[f"torchvision.{part}"] for part in ("datasets", "transforms", "models")
    )
    sys.path.insert(0, clone)
    import main_dino  # pyright: ignore[reportMissingImports]
    import vision_transformer as vits  # pyright: ignore[reportMissingImports]

    import utils  # pyright: ignore[reportMissingImports]

    torch.set_default_dtype(torch.float64)

    def network() -> Any:
        body = vits.VisionTransformer(
            img_size=[SIZE], patch_size=PATCH, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS,
            qkv_bias=True, norm_layer=lambda width: torch.nn.LayerNorm(width, eps=1e-6),
        )  # fmt: skip
        head = vits.DINOHead(
            WIDTH, PROTOTYPES, norm_last_layer=norm_last_layer, hidden_dim=HIDDEN,
            bottleneck_dim=BOTTLENECK,
        )  # fmt: skip
        return utils.MultiCropWrapper(body, head)

    student, teacher = network(), network()
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            parameter.copy_(torch.from_numpy(weight(name, tuple(parameter.shape))))
    teacher.load_state_dict(student.state_dict())
    # One step is an epoch here.
    loss_of = main_dino.DINOLoss(PROTOTYPES, 2 + SMALL_VIEWS, *TEMPERATURES, WARMUP, STEPS)
    optimizer = torch.optim.AdamW(utils.get_params_groups(student))
    rates = utils.cosine_scheduler(LR, LR_END, STEPS, 1)
    decays = utils.cosine_scheduler(DECAY, DECAY_END, STEPS, 1)
    momenta = utils.cosine_scheduler(MOMENTUM, 1, STEPS, 1)
    losses = []
    for step in range(STEPS):
        for number, group in enumerate(optimizer.param_groups):
            group["lr"] = rates[step]
            if number == 0:
                group["weight_decay"] = decays[step]
        views = crops(step)
        small = [views["local"][:, i] for i in range(SMALL_VIEWS)]
        pixels = [
            torch.from_numpy((view.astype(np.float64) / 255 - 0.5) / 0.5).permute(0, 3, 1, 2)
            for view in (views["global_1"], views["global_2"], *small)
        ]
        loss = loss_of(student(pixels), teacher(pixels[:2]).detach(), step)
        optimizer.zero_grad()
        loss.backward()
        utils.clip_gradients(student, CLIP)
        utils.cancel_gradients_last_layer(step, student, FROZEN)
        optimizer.step()
        with torch.no_grad():
            for own, other in zip(student.parameters(), teacher.parameters(), strict=True):
                other.mul_(momenta[step]).add_((1 - momenta[step]) * own)
        losses.append(loss.item())
    state = {name: value.abs().mean().item() for name, value in teacher.state_dict().items()}
    shapes = {name: list(value.shape) for name, value in teacher.named_parameters()}
    return {
        "losses": losses,
        "center": loss_of.center[0].tolist(),
        "shapes": shapes,
        "teacher": state,
    }


def main() -> None:
    """Prints the fixture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("clone", help="folder of facebookresearch/dino")
    clone = parser.parse_args().clone
    import torch  # pyright: ignore[reportMissingImports]

    torch.distributed.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:29531", rank=0, world_size=1
    )
    json.dump({case: reference(clone, kept) for case, kept in CASES.items()}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
