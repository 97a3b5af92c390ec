"""The peer of `train_worker`: the same step by timm; it is run by a Python that has torch and timm.

It imports nothing of this package but `step_timing`, which stands beside it. Its arguments are the
work and `eager` or `compiled` (torch.compile).
"""

import json
import sys

import step_timing


def prepare(work, kind):
    """A function that takes one step, and facts about it."""
    import timm  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

    place = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
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
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    drawn = torch.Generator().manual_seed(0)
    shape = (work["batch"], 3, work["size"], work["size"])
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=drawn).to(place)
    labels = torch.randint(0, work["classes"], (work["batch"],), generator=drawn).to(place)
    half = work["dtype"] == "bfloat16"

    def take():
        images = pixels.float() / 127.5 - 1
        with torch.autocast(place, torch.bfloat16, enabled=half):
            logits = network(images)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return take, {"params": sum(leaf.numel() for leaf in model.parameters())}


def peak():
    """The most bytes that the device has held; on a CPU, the process."""
    import torch  # pyright: ignore[reportMissingImports]

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return step_timing.process_peak()


def load():
    """Imports the libraries."""
    import timm  # noqa: F401  # pyright: ignore[reportMissingImports]
    import torch  # noqa: F401  # pyright: ignore[reportMissingImports]


if __name__ == "__main__":
    work, kind = sys.argv[1:]
    step_timing.serve(
        lambda: prepare(json.loads(work), kind),
        peak=peak,
        packages=("torch", "timm"),
        failures=(Exception,),
        out_of_memory=lambda error: type(error).__name__ == "OutOfMemoryError",
        load=load,
    )
