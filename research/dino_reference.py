"""Twenty steps of a tiny DINO and iBOT by the authors' own code, as losses to compare with.

Clone github.com/facebookresearch/dino (read at 7c446df) and github.com/bytedance/ibot (da316d8),
both Apache-2.0, and with PyTorch:

    python -m research.dino_reference dino DINO > tests/fixtures/dino.json
    python -m research.dino_reference ibot IBOT > tests/fixtures/ibot.json

Everything computes in float64. Weights and crops are functions of their names and numbers, made
without torch, so that a test can make them too.
"""

import argparse
import importlib
import json
import math
import sys
import types
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

BATCH, STEPS, SMALL_VIEWS = 4, 20, 3
SIZE, SMALL, PATCH = 16, 8, 4
WIDTH, DEPTH, HEADS, HIDDEN, BOTTLENECK, PROTOTYPES = 16, 2, 2, 32, 8, 24
LR, LR_END, DECAY, DECAY_END, MOMENTUM, CLIP = 2e-3, 1e-4, 0.04, 0.4, 0.9, 0.3
TEMPERATURES, WARMUP, FROZEN = (0.04, 0.07), 5, 3
CASES = {"prototypes of length 1": True, "lengths that train": False}  # norm_last_layer
IBOT_CASES = {"one layer of prototypes": True}  # shared_head


def crops(step: int) -> dict[str, np.ndarray]:
    """The views of a step by their entry in a batch, uint8 (B, n, H, W, 3) or (B, H, W, 3)."""
    rng = np.random.default_rng(step)
    large, small = (BATCH, SIZE, SIZE, 3), (BATCH, SMALL_VIEWS, SMALL, SMALL, 3)
    shapes = {"global_1": large, "global_2": large, "local": small}
    return {name: rng.integers(0, 256, shape, np.uint8) for name, shape in shapes.items()}


def masks(step: int) -> np.ndarray:
    """The masked patches of the large views of a step, (B, 2, P) bool; none of the first view."""
    rng = np.random.default_rng([step, 1])
    patches = (SIZE // PATCH) ** 2
    shares = rng.uniform(0.1, 0.5, (BATCH, 2, 1))
    order = rng.random((BATCH, 2, patches)).argsort(-1)
    found = order < (shares * patches).astype(int)
    found[0, 0] = False
    return found


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


def dino(clone: str, norm_last_layer: bool) -> dict[str, Any]:
    """DINO's losses and its last state, with prototypes of length 1 or not."""
    torch, modules = _imported(clone, "main_dino", "vision_transformer")
    main_dino, vits = modules

    def network() -> Any:
        head = vits.DINOHead(
            WIDTH, PROTOTYPES, norm_last_layer=norm_last_layer, hidden_dim=HIDDEN,
            bottleneck_dim=BOTTLENECK,
        )  # fmt: skip
        return main_dino.utils.MultiCropWrapper(vits.VisionTransformer(**_body(torch)), head)

    # One step is an epoch here.
    loss_of = main_dino.DINOLoss(PROTOTYPES, 2 + SMALL_VIEWS, *TEMPERATURES, WARMUP, STEPS)

    def loss(student: Any, teacher: Any, pixels: list[Any], step: int) -> Any:
        return loss_of(student(pixels), teacher(pixels[:2]).detach(), step)

    found = _train(torch, main_dino.utils, network(), network(), loss)
    return found | {"center": loss_of.center[0].tolist()}


def ibot(clone: str, shared_head: bool) -> dict[str, Any]:
    """Losses of iBOT and its last state, with one layer of prototypes for views and patches."""
    torch, modules = _imported(clone, "main_ibot", "models.vision_transformer", "models.head")
    main_ibot, vits, heads = modules

    def network(**options: Any) -> Any:
        body = vits.VisionTransformer(**_body(torch), return_all_tokens=True, **options)
        head = heads.iBOTHead(
            WIDTH, PROTOTYPES, patch_out_dim=PROTOTYPES, hidden_dim=HIDDEN,
            bottleneck_dim=BOTTLENECK, shared_head=shared_head,
        )  # fmt: skip
        return main_ibot.utils.MultiCropWrapper(body, head)

    loss_of = main_ibot.iBOTLoss(
        PROTOTYPES, PROTOTYPES, 2, SMALL_VIEWS, *TEMPERATURES, *TEMPERATURES, WARMUP, STEPS
    )
    side = SIZE // PATCH

    def loss(student: Any, teacher: Any, pixels: list[Any], step: int) -> Any:
        hidden = masks(step).reshape(BATCH, 2, side, side)
        views = [torch.from_numpy(hidden[:, view].copy()) for view in range(2)]
        answers = [one.detach() for one in teacher(pixels[:2])]
        own = student(pixels[:2], mask=views)
        student.backbone.masked_im_modeling = False
        small = student(pixels[2:])[0]
        student.backbone.masked_im_modeling = True
        return loss_of(own, answers, small, views, step)["loss"]

    found = _train(torch, main_ibot.utils, network(masked_im_modeling=True), network(), loss)
    return found | {
        "center": loss_of.center[0].tolist(), "patch_center": loss_of.center2[0, 0].tolist(),
    }  # fmt: skip


def _imported(clone: str, *names: str) -> tuple[Any, list[Any]]:
    import torch  # pyright: ignore[reportMissingImports]

    # The authors' scripts import what only their data and other networks need.
    for name in (
        "torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.models",
        "tensorboardX", "timm", "timm.models", "timm.models.registry", "evaluation",
        "evaluation.unsupervised", "evaluation.unsupervised.unsup_cls", "models.swin_transformer",
    ):  # fmt: skip
        sys.modules.setdefault(name, _Stub(name))
    sys.path.insert(0, clone)
    torch.set_default_dtype(torch.float64)
    return torch, [importlib.import_module(name) for name in names]


class _Stub(types.ModuleType):
    """A module that has whatever is imported from it."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_, **__: None})


def _body(torch: Any) -> dict[str, Any]:
    return {
        "img_size": [SIZE], "patch_size": PATCH, "embed_dim": WIDTH, "depth": DEPTH,
        "num_heads": HEADS, "qkv_bias": True,
        "norm_layer": lambda width: torch.nn.LayerNorm(width, eps=1e-6),
    }  # fmt: skip


def _train(
    torch: Any, utils: Any, student: Any, teacher: Any, loss_of: Callable[..., Any]
) -> dict[str, Any]:
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            parameter.copy_(torch.from_numpy(weight(name, tuple(parameter.shape))))
    teacher.load_state_dict(student.state_dict(), strict=False)  # which has no mask token
    optimizer = torch.optim.AdamW(utils.get_params_groups(student))
    rates = utils.cosine_scheduler(LR, LR_END, STEPS, 1)
    decays = utils.cosine_scheduler(DECAY, DECAY_END, STEPS, 1)
    momenta = utils.cosine_scheduler(MOMENTUM, 1, STEPS, 1)
    own = dict(student.named_parameters())
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
        loss = loss_of(student, teacher, pixels, step)
        optimizer.zero_grad()
        loss.backward()
        utils.clip_gradients(student, CLIP)
        utils.cancel_gradients_last_layer(step, student, FROZEN)
        optimizer.step()
        with torch.no_grad():
            for name, other in teacher.named_parameters():
                other.mul_(momenta[step]).add_((1 - momenta[step]) * own[name])
        losses.append(loss.item())
    state = {name: value.abs().mean().item() for name, value in teacher.state_dict().items()}
    shapes = {name: list(value.shape) for name, value in student.named_parameters()}
    return {"losses": losses, "shapes": shapes, "teacher": state}


def main() -> None:
    """Prints a fixture."""
    parser = argparse.ArgumentParser(prog="python -m research.dino_reference")
    parser.add_argument("which", choices=("dino", "ibot"))
    parser.add_argument("clone", help="folder of the authors' repository")
    args = parser.parse_args()
    import torch.distributed  # pyright: ignore[reportMissingImports]

    torch.distributed.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:29531", rank=0, world_size=1
    )
    run, cases = (dino, CASES) if args.which == "dino" else (ibot, IBOT_CASES)
    json.dump({case: run(args.clone, kept) for case, kept in cases.items()}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
