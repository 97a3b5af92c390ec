"""The peer of `train_worker`: the same step by timm; it is run by a Python that has torch and timm.

It imports nothing of this package, takes the same work and answers the same lines. Its arguments
are the work and `eager` or `compiled` (torch.compile).
"""

import json
import resource
import sys
import time
from importlib import metadata


def prepare(work, kind):
    """Returns a function that takes one step, and the number of parameters."""
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

    return take, sum(leaf.numel() for leaf in model.parameters())


def answer(take, steps):
    """Takes steps and returns their seconds, CPU seconds, last loss and the peak memory."""
    import torch  # pyright: ignore[reportMissingImports]

    began, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        loss = take()
    loss = float(loss)  # waits for the device
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "cpu": cpu, "loss": loss, "peak": peak}


def main(work, kind):
    """Answers until standard input ends."""
    try:
        import timm  # noqa: F401  # pyright: ignore[reportMissingImports]
        import torch  # noqa: F401  # pyright: ignore[reportMissingImports]

        began = time.perf_counter()
        take, params = prepare(json.loads(work), kind)
        first = answer(take, 1)
        versions = {name: metadata.version(name) for name in ("torch", "timm")}
    except Exception as error:
        kind = "memory" if type(error).__name__ == "OutOfMemoryError" else "error"
        text = str(error).strip().partition("\n")[0]
        print(json.dumps({kind: f"{type(error).__name__}: {text}"}), flush=True)
        return
    start = time.perf_counter() - began
    facts = {"params": params, "start": start, "versions": versions}
    print(json.dumps(facts | first), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(take, int(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
