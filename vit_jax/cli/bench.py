"""`vit_jax bench`."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vit_jax import config
from vit_jax.cli import arguments, tables
from vit_jax.utils import machine

if TYPE_CHECKING:
    from vit_jax.benchmarks import Table
    from vit_jax.benchmarks.infer_files import Panel
    from vit_jax.benchmarks.turns import Compared

HELP = "measure speed on this machine, as ratios to a named alternative"
TAKES_CONFIG = False
EPILOG = """\
attention: the implementations of model.attention.
startup: CPU seconds and peak memory of predict, evaluate, train, list and --help from start to
end, beside the imports that they need and, with --peer-python, a script of timm's.
input: images/s from JPEG files to batches, on one core and on all of them, compared with
decoding whole images and, if TensorFlow is installed, with tf.data, in turns.
infer: images/s and the largest batch over models and input sizes, as in figure 12 of the paper;
with --topology, the largest batch of a device (a core of v2 and v3, a chip of later ones) by its
compiler. On a CPU the batch is limited by time, and the output says so.
train: a training step as a run takes it, in turns with a peer on the same work: timm, eager and
compiled, in an interpreter that has torch and timm, or big_vision, from a checkout; of
--objective=mae transformers, of --objective=dino a checkout of its authors' code.
checkpoint: MB/s of saving and restoring a training state, in turns with orbax and safetensors.
evaluate: images/s of `vit_jax evaluate` and `embed`, in turns with the forward pass alone.
dispatch: steps/s of a run of digits, its loop and hooks, in turns with its compiled step alone.

  vit_jax bench startup --peer-python=PYTHON --output=speed.jsonl
  vit_jax bench input --data=FOLDER --peer-python=PYTHON --randaugment=2,10 --peer-path=CHECKOUT
  vit_jax bench infer --models=ViT-Ti/16,R50x1 --sizes=64,224 --output=speed
  vit_jax bench infer --models=ViT-B/16 --topology=v3-8
  vit_jax bench train --models=ViT-S/16 --objective=mae --peer=transformers --peer-python=PYTHON
  vit_jax bench train --models=ViT-S/16 --objective=dino --peer=dino --peer-path=CHECKOUT
  vit_jax bench train --models=ViT-S/16 --peer=timm --peer-python=PYTHON --output=speed.jsonl
  vit_jax bench checkpoint --models=ViT-S/16,ViT-B/16 --workdir=/mnt/disk --output=speed.jsonl
  vit_jax bench evaluate --models=ViT-Ti/16 --data=FOLDER --output=speed.jsonl
  vit_jax bench dispatch --output=speed.jsonl
"""

KINDS = (
    "attention", "startup", "input", "infer", "train", "checkpoint", "evaluate", "dispatch",
)  # fmt: skip
# Flags: the measurements that have one, how argparse takes it, and its meaning.
EVERY = "startup input infer train checkpoint evaluate dispatch"
FLAGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "data": (
        "input evaluate", {"type": arguments.local_path, "metavar": "FOLDER|TAR"},
        "JPEG files to load (default: generated ones, similar to ImageNet's)",
    ),
    "threads": (
        "input", {"type": arguments.numbers, "metavar": "N,..."},
        "loader threads to try (default: one per core)",
    ),
    "rounds": (
        EVERY, {"type": arguments.positive, "metavar": "N"},
        "turns of each; infer: passes of each (default: 5)",
    ),
    "peer-python": (
        "startup input train", {"metavar": "PATH"},
        "an interpreter that has TensorFlow, or the packages of --peer (default: this one); "
        "startup: one that has timm (default: none)",
    ),
    "randaugment": (
        "input", {"metavar": "N,M"},
        "RandAugment of N operations at magnitude M (default: none)",
    ),
    "feed": (
        "input", {"metavar": "MODEL"},
        "print how many cores a model needs, such as ViT-B/32, with --topology",
    ),
    "topology": (
        "input infer", {"metavar": "SLICE"},
        "the slice to feed, or to compile for: v3-8, v5e:2x2, ...",
    ),
    "models": (
        "infer train checkpoint evaluate", {"type": arguments.words, "metavar": "MODEL,..."},
        "models by name (default: ViT-S/16; infer: the paper's eight, on a CPU four small ones)",
    ),
    "sizes": (
        "infer train evaluate", {"type": arguments.numbers, "metavar": "PIXELS,..."},
        "sides of the images (default: 224; infer: 64,128,224,384,512, rounded to the patch)",
    ),
    "output": (
        EVERY, {"type": arguments.local_output_path, "metavar": "PATH"},
        "a file of JSON lines to add to; infer: a folder for infer.csv and infer.png",
    ),
    "workdir": (
        "checkpoint", {"type": arguments.local_path, "metavar": "FOLDER"},
        "a folder of the file system to measure (default: that of temporary files); nothing "
        "stays there",
    ),
    "batch": (
        "train evaluate", {"type": arguments.positive, "metavar": "N"},
        "images of a step (default: the largest power of two to 1024 that fits; on a CPU 16), or "
        "of a batch (default: 256; on a CPU 32)",
    ),
    "dtype": (
        "train", {"choices": ("float32", "bfloat16", "bfloat16_matmul")},
        "compute type, as model.dtype; peers compute in bfloat16 unless it is float32 (default: "
        "bfloat16, on a CPU float32)",
    ),
    "attention": (
        "train", {"type": arguments.words, "metavar": "KIND,..."},
        "kinds of model.attention to try (default: explicit)",
    ),
    "remat": (
        "train", {"choices": ("full", "dots", "dots_no_batch", "attention")},
        "kind of model.remat: activations to recompute, for less memory (default: none)",
    ),
    "objective": (
        "train", {"choices": ("supervised", "mae", "dino")},
        "what a step learns (default: supervised)",
    ),
    "peer": (
        "train", {"choices": ("timm", "big_vision", "transformers", "dino")},
        "the program to compare with, in turns",
    ),
    "peer-path": (
        "input train", {"type": arguments.local_path, "metavar": "CHECKOUT"},
        "a checkout of big_vision, whose RandAugment tf.data takes, or of --peer",
    ),
}  # fmt: skip


def add_arguments(parser: arguments.Parser) -> None:
    parser.add("what", "what to measure; see below", choices=KINDS)
    for name, (kinds, settings, meaning) in FLAGS.items():
        scope = "" if kinds == EVERY else f"{kinds.replace(' ', ', ')}: "
        parser.add_argument(f"--{name}", **settings, help=scope + meaning)


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    for name, (kinds, _, _) in FLAGS.items():
        # Flags have no argparse defaults: a value means that the user set it.
        value = getattr(args, name.replace("-", "_"))
        if value is not None and args.what not in kinds.split():
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            having = ", ".join(f"bench {kind}" for kind in kinds.split())
            raise config.ConfigError(f"--{name}={shown}: is a flag of {having} only")
    measurements: dict[str, Callable[[argparse.Namespace], None]] = {
        "attention": _attention,
        "startup": _startup,
        "input": _input,
        "infer": _compile_infer if args.topology else _infer,
        "train": _train,
        "checkpoint": _checkpoint,
        "evaluate": _evaluate,
        "dispatch": _dispatch,
    }
    measurements[args.what](args)
    return 0


def _attention(args: argparse.Namespace) -> None:
    from vit_jax.benchmarks import compute

    _show([], [compute.attention()])


def _startup(args: argparse.Namespace) -> None:
    from vit_jax.benchmarks import startup

    peer, rounds = args.peer_python, args.rounds or startup.ROUNDS
    every = list(startup.measure(peer, rounds=rounds, say=_print_progress))
    _record(args, every, {"model": startup.MODEL}, startup.versions(peer))
    _show(startup.title(), every)


def _input(args: argparse.Namespace) -> None:
    if bool(args.feed) != bool(args.topology):
        raise config.ConfigError("bench input: --feed=MODEL and --topology=SLICE go together")
    from vit_jax.benchmarks import input

    if args.feed:  # a mistake is reported before a minute of measuring
        input.host_cores(args.feed, args.topology, 1.0)
    given = {
        "data": args.data,
        "threads": args.threads,
        "peer_python": args.peer_python,
        "peer_path": args.peer_path,
        "randaugment": args.randaugment,
        "rounds": args.rounds,
    }
    settings = input.Input(**{key: value for key, value in given.items() if value is not None})
    title = input.title(settings)
    for line in title:
        print(line, flush=True)
    compared = list(input.measure(settings))
    work = {"batches": input.BATCHES, "randaugment": settings.randaugment or None}
    versions = {"tensorflow": settings.peer} if settings.peer else {}
    _record(args, compared, work, versions)
    _show([], compared)
    if args.feed:
        print()
        last = compared[-1]
        fed = [one for one in last.results if one.name in input.names_of(settings)]
        per_core = max(map(last.rate, fed)) / machine.cores()
        tables.table(("host", ""), input.host_cores(args.feed, args.topology, per_core))


def _infer(args: argparse.Namespace) -> None:
    import jax

    from vit_jax.benchmarks import forward, infer

    device = jax.devices()[0]
    names = args.models or (forward.SMALL if device.platform == "cpu" else forward.PAPER)
    forwards = forward.create_forwards(names, args.sizes or forward.SIZES, device.platform)
    _make_folder(args)
    rounds = args.rounds or infer.ROUNDS
    for line in infer.title(rounds):
        print(line, flush=True)
    results = list(infer.measure(forwards, rounds=rounds, say=_print_progress))
    tables.table(*infer.table(results))
    _write_infer(args, f"{device.device_kind}, vit_jax bench infer", *infer.files(results))


def _compile_infer(args: argparse.Namespace) -> None:
    if args.rounds is not None:
        raise config.ConfigError(f"--rounds={args.rounds}: nothing runs with --topology")
    if args.topology in ("cpu", "gpu"):
        raise config.ConfigError(
            f"--topology={args.topology}: name a TPU slice, or leave it out to measure here"
        )
    os.environ["JAX_PLATFORMS"] = "cpu"  # the target device need not be here
    from vit_jax import preflight
    from vit_jax.benchmarks import forward, max_batch

    forwards = forward.create_forwards(
        args.models or forward.PAPER, args.sizes or forward.SIZES, "tpu"
    )
    _make_folder(args)
    found = list(max_batch.search(forwards, preflight.open_slice(args.topology), _print_progress))
    tables.table(*max_batch.table(found))
    where = f"{args.topology}, by its compiler, vit_jax bench infer"
    _write_infer(args, where, *max_batch.files(found))


def _make_folder(args: argparse.Namespace) -> None:
    """Makes the folder of --output before minutes of measuring."""
    from vit_jax.utils import storage

    if args.output is not None:
        with storage.writing("--output", args.output):
            args.output.mkdir(parents=True, exist_ok=True)


def _write_infer(
    args: argparse.Namespace, where: str, rows: "Table", panels: "Sequence[Panel]"
) -> None:
    if args.output is not None:
        from vit_jax.benchmarks import infer_files

        for path in infer_files.write_chart(args.output, where, rows, panels):
            print(path)


def _train(args: argparse.Namespace) -> None:
    import dataclasses

    from vit_jax.benchmarks import train

    given = {"name": args.peer, "python": args.peer_python, "path": args.peer_path}
    works = train.works(
        args.models or ("ViT-S/16",),
        args.sizes or (224,),
        batch=args.batch,
        dtype=args.dtype,
        attentions=args.attention or ("explicit",),
        objective=args.objective or "supervised",
        remat=args.remat or "none",
    )
    rounds = args.rounds or train.ROUNDS
    train.check_peer(args.peer, works[0].objective)
    peer = train.Peer(**{key: value for key, value in given.items() if value is not None})
    every = []
    for work, one in train.measure(works, peer, rounds=rounds, say=_print_progress):
        every.append(one)
        # After each: a later one may not fit.
        _record(args, [one], dataclasses.asdict(work), one.results[0].facts["versions"])
    _show(train.title(every[0].device, rounds), every)


def _checkpoint(args: argparse.Namespace) -> None:
    from vit_jax.benchmarks import checkpoint
    from vit_jax.runtime import device

    # Before jax starts its threads.
    device.step_by_step()
    names, rounds = args.models or ("ViT-S/16",), args.rounds or checkpoint.ROUNDS
    every = []
    measured = checkpoint.measure(names, args.workdir, rounds=rounds, say=_print_progress)
    for name, compared in zip(names, measured, strict=True):
        work = {"model": name, "file_system": checkpoint.file_system(args.workdir)}
        _record(args, compared, work, ("orbax-checkpoint", "safetensors"))
        every += compared
    _show(checkpoint.title(args.workdir), every)


def _evaluate(args: argparse.Namespace) -> None:
    from vit_jax.benchmarks import evaluate
    from vit_jax.runtime import backend, device

    device.step_by_step()
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
        # Recorded at once: a later model may fail.
        _record(args, compared, {"batch": batch})
        every += compared
    _show(evaluate.title(batch), every)


def _dispatch(args: argparse.Namespace) -> None:
    from vit_jax.benchmarks import dispatch

    compared = [dispatch.measure(args.rounds or dispatch.ROUNDS)]
    _record(args, compared, {"config": dispatch.NAME})
    _show(dispatch.title(), compared)


def _show(title: Iterable[str], compared: "Sequence[Compared]") -> None:
    from vit_jax.benchmarks import turns

    for line in title:
        print(line)
    tables.table(*turns.table(compared))


def _record(
    args: argparse.Namespace,
    compared: "Sequence[Compared]",
    work: Mapping[str, object],
    versions: Mapping[str, str] | Sequence[str] = (),
) -> None:
    from vit_jax.benchmarks import turns
    from vit_jax.utils import storage

    if args.output is not None:
        command = shlex.join(["vit_jax", *sys.argv[1:]])
        line = turns.record(compared, work, command, versions)
        with storage.writing("--output", args.output):
            storage.append_line(args.output, line)


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
