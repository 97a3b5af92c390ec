"""The peers of `train_worker` in PyTorch; they are run by a Python that has torch and the peer.

It imports nothing of this package but `step_timing`, which stands beside it. Its arguments: the
work, and `timm` with `eager` or `compiled` (torch.compile), `transformers` (its ViTMAE), or
`dino` with a checkout of facebookresearch/dino.
"""

import functools
import importlib
import json
import sys
import types

import step_timing


def prepare(work, name, detail):
    """A function that takes one step, and facts about it."""
    import torch  # pyright: ignore[reportMissingImports]

    place = "cuda" if torch.cuda.is_available() else "cpu"
    # As jax does by default: products of float32 in TF32 on GPUs that have it.
    torch.backends.cuda.matmul.allow_tf32 = True
    drawn = torch.Generator().manual_seed(0)

    def pixels(side):
        shape = (work["batch"], 3, side, side)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=drawn).to(place)

    programs = {"timm": supervised, "transformers": masked, "dino": dino}
    model, groups, loss_of, after = programs[name](work, place, pixels, detail)
    optimizer = torch.optim.Adam(groups, lr=1e-3, fused=True)

    def take():
        with torch.autocast(place, torch.bfloat16, enabled=work["dtype"] != "float32"):
            loss = loss_of()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        after(optimizer)
        return loss

    return take, {"params": sum(leaf.numel() for leaf in model.parameters())}


def normalized(pixels):
    """Pixels from -1 to 1 of uint8 ones."""
    return pixels.float() / 127.5 - 1


def step(optimizer):
    """The update."""
    optimizer.step()


def supervised(work, place, pixels, kind):
    """A network of timm, its parameters as Adam takes them, its loss, and the update."""
    import timm  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

    model = timm.models.vision_transformer.VisionTransformer(
        img_size=work["size"],
        patch_size=work["patch"],
        embed_dim=work["width"],
        depth=work["depth"],
        num_heads=work["heads"],
        mlp_ratio=work["mlp_dim"] / work["width"],
        num_classes=work["classes"],
    ).to(place)
    model.train()
    network = torch.compile(model) if kind == "compiled" else model
    images = pixels(work["size"])
    labels = torch.randint(0, work["classes"], (work["batch"],)).to(place)

    def loss():
        logits = network(normalized(images))
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    return model, model.parameters(), loss, step


def masked(work, place, pixels, _):
    """The masked autoencoder of transformers with the paper's decoder; answers as `supervised`."""
    from transformers import (  # pyright: ignore[reportMissingImports]
        ViTMAEConfig,
        ViTMAEForPreTraining,
    )

    options = ViTMAEConfig(
        image_size=work["size"],
        patch_size=work["patch"],
        hidden_size=work["width"],
        num_hidden_layers=work["depth"],
        num_attention_heads=work["heads"],
        intermediate_size=work["mlp_dim"],
        norm_pix_loss=True,
    )
    model = ViTMAEForPreTraining(options).to(place)
    model.train()
    images = pixels(work["size"])
    return model, model.parameters(), lambda: model(normalized(images)).loss, step


def dino(work, place, pixels, _):
    """The student of DINO's authors and its loss against the teacher; answers as `supervised`.

    Two views and eight small ones, 65,536 prototypes, gradients clipped one by one and none for
    the last layer, as in their first epoch.
    """
    import main_dino  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]
    import vision_transformer as vits  # pyright: ignore[reportMissingImports]

    utils = importlib.import_module("utils")
    # Its loss averages over processes.
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    prototypes, patch = 65536, work["patch"]

    def network():
        body = vits.VisionTransformer(
            img_size=[work["size"]],
            patch_size=patch,
            embed_dim=work["width"],
            depth=work["depth"],
            num_heads=work["heads"],
            mlp_ratio=work["mlp_dim"] / work["width"],
            qkv_bias=True,
            norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6),
        )
        return utils.MultiCropWrapper(body, vits.DINOHead(work["width"], prototypes)).to(place)

    student, teacher = network(), network()
    teacher.load_state_dict(student.state_dict())
    for parameter in teacher.parameters():
        parameter.requires_grad = False
    # 96 of 224 pixels in DINO's code; here the nearest whole number of patches.
    small = max(1, round(work["size"] * 3 / 7 / patch)) * patch
    views = [pixels(work["size"]) for _ in range(2)] + [pixels(small) for _ in range(8)]
    # The teacher's temperature is 0.04 from the start: no warm-up, of 100 epochs.
    loss_of = main_dino.DINOLoss(prototypes, len(views), 0.04, 0.04, 0, 100).to(place)

    def loss():
        images = [normalized(view) for view in views]
        return loss_of(student(images).float(), teacher(images[:2]).float(), 0)

    def after(optimizer):
        utils.clip_gradients(student, 3.0)
        utils.cancel_gradients_last_layer(0, student, 1)
        optimizer.step()
        with torch.no_grad():
            for own, other in zip(student.parameters(), teacher.parameters(), strict=True):
                other.mul_(0.996).add_(0.004 * own)

    # No weight decay on biases and norms: two groups.
    return student, utils.get_params_groups(student), loss, after


def peak():
    """The most bytes that the device has held; on a CPU, the process."""
    import torch  # pyright: ignore[reportMissingImports]

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return step_timing.process_peak()


def load(name, checkout):
    """Imports the libraries."""
    import torch  # noqa: F401  # pyright: ignore[reportMissingImports]

    if name == "dino":
        # main_dino imports it for its data and other networks, which no step here needs.
        unused = types.ModuleType("torchvision")
        vars(unused).update(datasets=unused, transforms=unused, models=unused)
        sys.modules["torchvision"] = unused
        sys.path.insert(0, checkout)
    importlib.import_module("main_dino" if name == "dino" else name)


if __name__ == "__main__":
    work, name, *details = sys.argv[1:]
    (detail,) = details or [None]
    step_timing.serve(
        lambda: prepare(json.loads(work), name, detail),
        peak=peak,
        packages=("torch",) if name == "dino" else ("torch", name),
        failures=(Exception,),
        out_of_memory=lambda error: type(error).__name__ == "OutOfMemoryError",
        load=lambda: load(name, detail),
    )
