"""`vit_jax inspect`."""

import argparse

from vit_jax import config
from vit_jax.cli import arguments
from vit_jax.runtime import signals

# The kinds of `inspect.outputs.KINDS`, listed here without importing jax.
KINDS = {
    "filters": "principal components of the patch embedding's filters (ViT, figure 7 left)",
    "posemb": "similarity of the position embeddings of patches (figures 7 and 10)",
    "attention-distance": "mean attention distance of each head in pixels (figures 7 and 11)",
    "rollout": "attention rollout as brightness of the image (figures 6 and 14)",
    "attention": "attention of the output in every layer and head",
    "features": "principal components of the features of patches, as colors",
    "matches": "patches of two images that are each other's most similar",
    "reconstruct": "predictions of a model trained on masked patches, or a masked autoencoder",
    "saliency": "pixels that speak for a class: gradient rollout, Grad-CAM, integrated gradients",
    "all": "each of these that the model supports",
    "view": "an interactive page: attention of each patch, head and layer (FILE.html)",
}
HELP = "draw the filters, position embeddings and attention of a model"
TAKES_CONFIG = True
EPILOG = (
    "".join(f"  {kind:20}{text}\n" for kind, text in KINDS.items())
    + """
saliency also draws plain rollout, and prints what each map is worth: the area under the
probability of the class while the most salient parts are deleted (less is better) or
inserted (more is better), compared with a random order.

The numbers are written next to the figures (.npz, .csv). `vit_jax report` shows the figures in a
run directory.
"""
)


def add_arguments(parser: arguments.Parser) -> None:
    parser.add("what WHAT", "see below", choices=KINDS)
    arguments.add_checkpoint(parser)
    parser.add(
        "images FILE_OR_FOLDER",
        "images to show, also in a bucket (default: the evaluation split of a run)",
        nargs="*",
    )
    parser.add(
        "--count N",
        "images at most, drawn by --seed (default: 128 for attention-distance, 32 for "
        "rollout, 18 for reconstruct, 16 for features, 8 for view, 4 for attention, 4 for "
        "saliency, 2 for matches)",
        type=arguments.positive,
    )
    arguments.add_seed(parser)
    parser.add(
        "--class NAME",
        "saliency: a class by name or index (default: the top prediction of each image)",
        dest="label",
    )
    parser.add(
        "--steps N",
        "saliency: steps of integrated gradients (default: 32)",
        type=arguments.positive,
    )
    parser.add(
        "--output DIR|FILE.html",
        "folder to write to (default: inspect in the run directory, else inspect/CHECKPOINT); "
        "view: FILE.html (default: view.html)",
        type=arguments.output_path,
    )
    parser.add("--format", "of figures", choices=("png", "svg", "both"), default="png")
    # const=0: without a port, the system chooses a free one.
    parser.add(
        "--serve PORT",
        "view: serve the page on 127.0.0.1 instead, where it also takes your images "
        "(default port: any free one)",
        nargs="?",
        const=0,
        type=arguments.port,
    )


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    for flag, value in (("class", args.label), ("steps", args.steps)):
        if value is not None and args.what not in ("saliency", "all"):
            raise config.ConfigError(f"--{flag}={value}: only for `inspect saliency`")
    if args.what == "view":
        return _view(args, overrides)
    if args.serve is not None:
        raise config.ConfigError(f"--serve={args.serve}: only for `inspect view`")
    from vit_jax.inference.inspect import outputs

    # The default of `steps` is that of `outputs.inspect`, which the help cannot import without jax.
    for path in outputs.inspect(
        args.what,
        args.checkpoint,
        overrides,
        step=args.step,
        images=args.images,
        count=args.count,
        seed=args.seed,
        output=args.output,
        formats=("png", "svg") if args.format == "both" else (args.format,),
        label=args.label,
        **({} if args.steps is None else {"steps": args.steps}),
    ):
        print(path)
    return 0


def _view(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    if args.format != "png":
        raise config.ConfigError(f"--format={args.format}: `inspect view` draws no figures")
    if args.output is not None and args.serve is not None:
        raise config.ConfigError(f"--output={args.output}: --serve writes no file; leave one out")
    from vit_jax.inference.inspect import serve, view
    from vit_jax.runtime import device

    if args.serve is not None:
        # Before the viewer and the server start threads.
        device.share_one_arena()
    viewer, pictures = view.open_viewer(
        args.checkpoint,
        overrides,
        step=args.step,
        images=args.images,
        count=args.count,
        seed=args.seed,
        needed=args.serve is None,
    )
    if args.serve is None:
        print(view.write_page(view.page(viewer, pictures), args.output))
        return 0
    page = view.page(viewer, pictures, live=True)
    with serve.Server(viewer, page, args.serve) as server:
        print(f"{server.url} (on this machine only; Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            # The usual end of a server, so the exit code is 0.
            signals.answered()
    return 0
