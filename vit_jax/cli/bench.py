"""`vit_jax bench`."""

import argparse
import os
import shlex
import sys
from typing import Any

from vit_jax import config
from vit_jax.cli import arguments, tables

HELP = "measure speed on this machine, as ratios to a named alternative"
TAKES_CONFIG = False
EPILOG = """\
attention: the implementations of model.attention. startup: import, --help, and train to its first
step.
input: images/s from JPEG files to batches, on one core and on all of them, compared with
decoding whole images and, if TensorFlow is installed, with tf.data, in turns.
infer: images/s and the largest batch over models and input sizes, as in figure 12 of the paper;
with --topology, the largest batch of a device (a core of v2 and v3, a chip of later ones) by its
compiler. On a CPU the batch is limited by time, and the output says so.
train: a training step as a run takes it, in turns with a peer on the same work: timm, eager and
compiled, in an interpreter that has torch and timm, or big_vision, from a checkout.
checkpoint: MB/s of saving and restoring a training state, in turns with orbax and safetensors.
evaluate: images/s of `vit_jax evaluate` and `embed`, in turns with the forward pass alone.
dispatch: steps/s of a run of digits, its loop and hooks, in turns with its compiled step alone.

  vit_jax bench input --data=FOLDER --peer-python=PYTHON --randaugment=2,10 --peer-path=CHECKOUT
  vit_jax bench infer --models=ViT-Ti/16,R50x1 --sizes=64,224 --output=speed
  vit_jax bench infer --models=ViT-B/16 --topology=v3-8
  vit_jax bench train --models=ViT-S/16 --peer=timm --peer-python=PYTHON --output=speed.jsonl
  vit_jax bench checkpoint --models=ViT-S/16,ViT-B/16 --workdir=/mnt/disk --output=speed.jsonl
  vit_jax bench evaluate --models=ViT-Ti/16 --data=FOLDER --output=speed.jsonl
  vit_jax bench dispatch --output=speed.jsonl
"""


# What can be measured, and the flags of each.
KINDS = {
    "attention": (),
    "startup": (),
    "input": (
        "data", "threads", "peer_python", "peer_path", "randaugment", "rounds", "feed", "topology",
        "output",
    ),
    "infer": ("models", "sizes", "output", "rounds", "topology"),
    "train": (
        "models", "sizes", "batch", "dtype", "attention", "peer", "peer_python", "peer_path",
        "rounds", "output",
    ),
    "checkpoint": ("models", "workdir", "rounds", "output"),
    "evaluate": ("models", "sizes", "batch", "data", "rounds", "output"),
    "dispatch": ("rounds", "output"),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("what", choices=KINDS, help="what to measure; see below")
    parser.add_argument(
        "--data",
        type=arguments.local_path,
        metavar="FOLDER|TAR",
        help="input, evaluate: JPEG files to load (default: generated ones, similar to ImageNet's)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        metavar="N",
        help="input: loader threads to try (default: one per core)",
    )
    parser.add_argument(
        "--rounds",
        type=arguments.positive,
        metavar="N",
        help="turns of each; infer: passes of each (default: 5)",
    )
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        help="input: an interpreter that has TensorFlow; train: one that has the peer's packages "
        "(default: this one)",
    )
    parser.add_argument(
        "--randaugment",
        metavar="N,M",
        help="input: RandAugment of N operations at magnitude M (default: none)",
    )
    parser.add_argument(
        "--feed",
        metavar="MODEL",
        help="input: print how many cores a model needs, such as ViT-B/32, with --topology",
    )
    parser.add_argument(
        "--topology",
        metavar="SLICE",
        help="input: the slice to feed; infer: the one to compile for: v3-8, v5e:2x2, ...",
    )
    parser.add_argument(
        "--models",
        type=arguments.words,
        metavar="MODEL,...",
        help="infer: models by name (default: the paper's eight; on a CPU four small ones); "
        "others: ViTs by name (default: ViT-S/16)",
    )
    parser.add_argument(
        "--sizes",
        type=arguments.image_sizes,
        metavar="PIXELS,...",
        help="infer: sides of the images, rounded to a multiple of a model's patch "
        "(default: 64,128,224,384,512; others: 224)",
    )
    parser.add_argument(
        "--output",
        type=arguments.local_output_path,
        metavar="PATH",
        help="a file of JSON lines to add to; infer: a folder to write infer.csv and infer.png to",
    )
    parser.add_argument(
        "--workdir",
        type=arguments.local_path,
        metavar="FOLDER",
        help="checkpoint: a folder of the file system to measure (default: that of temporary "
        "files); nothing stays there",
    )
    _add_train_arguments(parser)


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch",
        type=arguments.positive,
        metavar="N",
        help="train: images of a step (default: the largest power of two to 1024 that fits; on a "
        "CPU 16); evaluate: images of a batch (default: 256; on a CPU 32)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="train: compute type (default: bfloat16, on a CPU float32)",
    )
    parser.add_argument(
        "--attention",
        type=arguments.words,
        metavar="KIND,...",
        help="train: kinds of model.attention to try (default: explicit)",
    )
    parser.add_argument(
        "--peer", choices=("timm", "big_vision"), help="train: whom to take turns with"
    )
    parser.add_argument(
        "--peer-path",
        type=arguments.local_path,
        metavar="CHECKOUT",
        help="train: a checkout of big_vision; input: one whose RandAugment tf.data takes",
    )


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints measurements of this machine."""
    _check_flags(args)
    kinds = {
        "input": _input,
        "infer": _fitting_batches if args.topology else _infer,
        "train": _train,
        "checkpoint": _checkpoint,
        "evaluate": _evaluate,
        "dispatch": _dispatch,
    }
    if args.what in kinds:
        return kinds[args.what](args)
    from vit_jax.benchmarks import compute

    measure = {"attention": compute.attention, "startup": compute.startup}[args.what]
    tables.table(*measure())
    return 0


def _infer(args: argparse.Namespace) -> int:
    import jax

    from vit_jax.benchmarks import forward, infer, infer_files

    device = jax.devices()[0]
    names = args.models or (forward.SMALL if device.platform == "cpu" else forward.PAPER)
    forwards = forward.create(names, args.sizes or forward.SIZES, device.platform)
    if args.output is not None:
        infer_files.check(args.output)
    rounds = args.rounds or infer.ROUNDS
    for line in infer.title(rounds):
        print(line, flush=True)
    results = list(infer.measure(forwards, rounds=rounds, say=_print_progress))
    tables.table(*infer.table(results))
    if args.output is not None:
        where = f"{device.device_kind}, vit_jax bench infer"
        for path in infer_files.write_measured(results, args.output, where):
            print(path)
    return 0


def _fitting_batches(args: argparse.Namespace) -> int:
    if args.rounds is not None:
        raise config.ConfigError(f"--rounds={args.rounds}: nothing runs with --topology")
    os.environ["JAX_PLATFORMS"] = "cpu"  # the target device need not be here
    from vit_jax import preflight
    from vit_jax.benchmarks import forward, infer, infer_files, max_batch

    if args.topology in ("cpu", "gpu"):
        raise config.ConfigError(
            f"--topology={args.topology}: name a TPU slice, or leave it out to measure here"
        )
    names, sizes = args.models or forward.PAPER, args.sizes or forward.SIZES
    forwards = forward.create(names, sizes, "tpu")
    if args.output is not None:
        infer_files.check(args.output)
    where = preflight.open_slice(args.topology)
    found = list(max_batch.search(forwards, where, _print_progress))
    tables.table(*infer.table_of_fits(found))
    if args.output is not None:
        title = f"{args.topology}, by its compiler, vit_jax bench infer"
        for path in infer_files.write_fits(found, args.output, title):
            print(path)
    return 0


def _train(args: argparse.Namespace) -> int:
    from vit_jax.benchmarks import train, train_results

    peer = {"name": args.peer, "python": args.peer_python, "path": args.peer_path}
    works = train.works(
        args.models or ("ViT-S/16",),
        args.sizes or (224,),
        batch=args.batch,
        dtype=args.dtype,
        attentions=args.attention or ("explicit",),
    )
    rounds = args.rounds or train.ROUNDS
    given = train.Peer(**{key: value for key, value in peer.items() if value is not None})
    measured = []
    for one in train.measure(works, given, rounds=rounds, say=_print_progress):
        measured.append(one)
        _record(args, train_results.record(one, _command()))  # after each: a later one may not fit
    for line in train_results.title(measured[0], rounds):
        print(line)
    tables.table(*train_results.table(measured))
    return 0


def _checkpoint(args: argparse.Namespace) -> int:
    from vit_jax.benchmarks import checkpoint, turns
    from vit_jax.runtime import device

    checkpoint.check(args.workdir)
    device.keep_freed_memory()
    every = []
    for name in args.models or ("ViT-S/16",):
        _print_progress(name)
        live, target = checkpoint.random_state(name)
        given = {"rounds": args.rounds or checkpoint.ROUNDS, "where": args.workdir}
        compared = checkpoint.measure(name, live, target, **given)
        work = {"model": name, "file_system": checkpoint.file_system(args.workdir)}
        _record_compared(args, compared, work, ("orbax-checkpoint", "safetensors"))
        every += compared
    for line in checkpoint.title(args.workdir):
        print(line)
    tables.table(*turns.table(every))
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from vit_jax.benchmarks import evaluate, turns
    from vit_jax.runtime import backend, device

    device.keep_freed_memory()
    batch = args.batch or (32 if backend.is_cpu_only() else 256)
    every = []
    for compared in evaluate.measure(
        args.models or ("ViT-S/16",),
        args.sizes or (224,),
        batch=batch,
        data=args.data,
        rounds=args.rounds or evaluate.ROUNDS,
        say=_print_progress,
    ):
        _record_compared(args, compared, {"batch": batch})
        every += compared
    for line in evaluate.title(batch):
        print(line)
    tables.table(*turns.table(every))
    return 0


def _dispatch(args: argparse.Namespace) -> int:
    from vit_jax.benchmarks import dispatch, turns

    compared = [dispatch.measure(args.rounds or dispatch.ROUNDS)]
    _record_compared(args, compared, {"config": dispatch.NAME})
    for line in dispatch.title():
        print(line)
    tables.table(*turns.table(compared))
    return 0


def _record_compared(
    args: argparse.Namespace, compared: Any, work: dict[str, Any], packages: tuple[str, ...] = ()
) -> None:
    from vit_jax.benchmarks import turns

    _record(args, turns.record(compared, work, _command(), packages))


def _record(args: argparse.Namespace, line: dict[str, Any]) -> None:
    """Adds a record to the file of --output, if there is one."""
    from vit_jax.utils import storage

    if args.output is not None:
        with storage.writing("--output", args.output):
            storage.append_line(args.output, line)


def _command() -> str:
    return shlex.join(["vit_jax", *sys.argv[1:]])


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _input(args: argparse.Namespace) -> int:
    if bool(args.feed) != bool(args.topology):
        raise config.ConfigError("bench input: --feed=MODEL and --topology=SLICE go together")
    from vit_jax.benchmarks import host_cores, input

    if args.feed:  # a mistake is reported before a minute of measuring
        host_cores.needs(args.feed, args.topology, 1.0)
    given = {
        "data": args.data,
        "threads": args.threads and tuple(args.threads),
        "peer_python": args.peer_python,
        "peer_path": args.peer_path,
        "randaugment": args.randaugment,
        "rounds": args.rounds,
    }
    chosen = input.Input(**{key: value for key, value in given.items() if value is not None})
    for line in input.title(chosen):
        print(line)
    results = input.measure(chosen)
    _record(args, input.record(chosen, results, _command()))
    tables.table(*input.table(results))
    if args.feed:
        print()
        last = [one for one in results if one.name.startswith(input.OURS)][-2]
        per_core = last.rate / last.cores
        tables.table(("host", ""), host_cores.needs(args.feed, args.topology, per_core))
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    """Raises ConfigError for a flag that the chosen measurement does not have."""
    for key in dict.fromkeys(flag for flags in KINDS.values() for flag in flags):
        value = getattr(args, key)
        if value is not None and key not in KINDS[args.what]:
            having = ", ".join(f"bench {kind}" for kind, flags in KINDS.items() if key in flags)
            raise config.ConfigError(
                f"--{key.replace('_', '-')}={_shown(value)}: is a flag of {having} only"
            )


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
