"""Mutation testing: which test notices a small fault of the code?

    python -m research.mutation draw --each=10              mends the table, and adds faults
    python -m research.mutation run [--until=18:30] [WORD]  finds their killers, resuming
    python -m research.mutation check [--share=50]          do they still kill them?
    python -m research.mutation table                       counts by module

tests/mutation/faults.jsonl has one fault a line, with the test that kills it, the CPU seconds that
this took from the start of the tests, imports included, or why no test can. Faults are made one at
a time in a copy of the repository. Its tests run in forks of a process that has imported jax and
the like: the tests of its module's files that call the function, the quickest first.
"""

import argparse
import dataclasses
import fcntl
import itertools
import json
import pathlib
import random
import statistics
import sys
import time

from research import fault_operators, forked_tests
from tests.helpers import rotation

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/mutation/faults.jsonl"
TRAINING = ("schedules", "cooldown", "losses", "optimizer", "state", "step", "loop", "notices",
            "sessions", "trainable", "masked", "mixup")  # fmt: skip
# Modules of vit_jax, and the files of tests that have to notice a fault in them.
TARGETS = {
    ("training", "step objectives state schedules"): [
        f"training/test_{one}.py" for one in TRAINING
    ],
    ("models", "vit layers positions"): [
        f"models/test_{one}.py"
        for one in ("positions", "layers", "vit", "variants", "backbone_parts", "macs")
    ],
    ("data", "pipeline sampling"): [
        f"data/test_{one}.py" for one in ("sampling", "feed", "subset", "pipeline", "csv_source")
    ],
    ("checkpoints", "record manager digests reader"): [
        f"checkpoints/test_{one}.py" for one in ("record", "digests", "manager", "faults")
    ],
    ("evaluation", "evaluation classification fewshot knn probe"): [
        f"evaluation/test_{one}.py"
        for one in ("evaluation", "classification", "exact", "fewshot", "knn", "probe", "several",
                    "further", "final")
    ],
    ("weights", "mapping readers families/google families/timm_vit families/hf_vit "
     "families/huggingface families/hf_towers families/bit families/torch_rules"): [
        f"weights/test_{one}.py"
        for one in ("files", "layout", "bit", "google", "timm", "huggingface", "targets", "unsaid",
                    "backbones")
    ],
}  # fmt: skip
# Modules outside of that core, and the few files whose tests are theirs.
OTHERS = {
    "train_loop": "training/loop",
    "runs/evaluating": "evaluation/final",
    "data/run_splits": "evaluation/evaluation evaluation/final",
    "training/lora": "training/lora training/trainable",
    "training/trainable": "training/trainable training/lora",
    "training/optimizers": "training/optimizer training/trainable",
    "training/losses": "training/losses training/mixup",
    "training/mixup": "training/mixup",
    "training/distillation": "training/distillation",
    "training/masked_objective": "training/masked",
    "training/replay": "training/replay",
    "training/normalization": "training/step data/depth",
    "data/csv_source": "data/csv_source",
    "data/tiff": "data/tiff",
    "data/transforms": "data/transforms data/erasing data/augmentation_kit",
    "data/randaugment": "data/augment",
    "data/folders": "data/folders",
    "data/split_roles": "data/split_roles",
    "data/image_headers": "data/images",
    "data/decoding": "data/images data/depth",
    "data/native_aspect": "evaluation/native_aspect",
    "data/example_lists": "data/splits",
    "data/labels": "data/labels data/real",
    "evaluation/multilabel": "evaluation/exact evaluation/several",
    "evaluation/label_sets": "evaluation/label_sets",
    "evaluation/class_subset": "evaluation/exact evaluation/several",
    "evaluation/corruptions": "evaluation/corruptions",
    "evaluation/linear_data": "evaluation/pairs evaluation/fewshot",
    "inference/segmentation_masks": "inference/segmentation",
    "inference/segmentation": "inference/segmentation",
    "research/findings/verdicts": "research/findings/findings_verdicts",
    "research/findings/measures": "research/findings/findings_declarations "
    "research/findings/findings_protocol",
    "studies/records": "studies/study_records",
    "research/findings/verification": "research/findings/findings_verification",
}
# The files of tests that have to notice a fault, by module.
GROUPS = {
    f"vit_jax/{folder}/{module}.py": tuple(f"tests/{file}" for file in files)
    for (folder, modules), files in TARGETS.items()
    for module in modules.split()
} | {
    f"{'' if module.startswith('research/') else 'vit_jax/'}{module}.py": tuple(
        f"tests/{'/'.join([*file.split('/')[:-1], 'test_' + file.split('/')[-1]])}.py"
        for file in files.split()
    )
    for module, files in OTHERS.items()
}
BY_HAND = "by hand"  # the operator of a fault that somebody wrote
MODULES = [file.removesuffix(".py").replace("/", ".") for file in GROUPS]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A fault and what became of it.

    Attributes:
      fault: what is changed.
      killed_by: the first test that failed; empty where none did, or none has run yet.
      seconds: CPU seconds until then.
      why: why no test can notice it, if so.
    """

    fault: fault_operators.Fault
    killed_by: str = ""
    seconds: float | None = None
    why: str = ""

    def line(self):
        return dataclasses.asdict(self.fault) | {
            "killed_by": self.killed_by, "seconds": self.seconds, "why": self.why,
        }  # fmt: skip


def read(path=TABLE):
    """Returns the table's rows."""
    rows = []
    for text in path.read_text().splitlines() if path.exists() else []:
        line = json.loads(text)
        own = {name: line.pop(name) for name in ("killed_by", "seconds", "why")}
        rows.append(Row(fault=fault_operators.Fault(**line), **own))
    return rows


def write(rows, path=TABLE):
    order = list(GROUPS)
    rows = sorted(rows, key=lambda row: order.index(row.fault.file))  # stable
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row.line()) + "\n" for row in rows))
    part.replace(path)


def draw(rows, each, seed):
    """Returns the rows that still fit the code, and new ones of modules with fewer than `each`.

    Of every operator as many as there are; faults written by hand do not count.
    """
    texts = {file: (ROOT / file).read_text() for file in GROUPS}
    kept = [row for row in rows if _fits(row.fault, texts)]
    known = {row.fault for row in kept}
    for file, text in texts.items():
        rng = random.Random(f"{seed} {file}")
        faults = list(fault_operators.generate(file, text))
        rng.shuffle(faults)
        kinds = sorted({fault.operator for fault in faults})
        rng.shuffle(kinds)
        turns = [[one for one in faults if one.operator == kind] for kind in kinds]
        drawn = [one for turn in itertools.zip_longest(*turns) for one in turn if one is not None]
        left = each - sum(one.file == file and one.operator != BY_HAND for one in known)
        kept += [Row(fault=fault) for fault in drawn if fault not in known][: max(left, 0)]
    return kept


def _fits(fault, texts):
    try:
        return bool(fault.applied(texts[fault.file]))
    except (KeyError, ValueError):
        return False


def baseline(copy, files, measure):
    """Returns the seconds of a group's tests, and what each of them calls.

    A test that fails while its calls are traced is left out. Files that were never measured are
    run if `measure` says so.
    """
    known = {"seconds": {}, "calls": {}, "missing": False}
    for file in files:
        kept = forked_tests.WORK / f"{file.replace('/', '.')}.json"
        if not kept.exists() and not measure:
            known["missing"] = True
            continue
        if not kept.exists():
            events, _ = copy.tests([file], functions=True)
            failed = [event[1] for event in events if event[0] == "failed"]
            print(*(f"left out: {test}" for test in failed), sep="\n")
            ended = [event for event in events if event[0] == "end" and event[1] not in failed]
            assert ended, f"{file}: {(copy.root.parent / 'output').read_text()[-2000:]}"
            kept.write_text(json.dumps([event[1:] for event in ended]))
        for test, seconds, calls in json.loads(kept.read_text()):
            known["seconds"][test], known["calls"][test] = seconds, calls
    return known


def killer(copy, fault, known, budget):
    """Returns the first test that fails with a fault, and CPU seconds; "" for none.

    None instead of a test: the CPU seconds of `budget` were too few to tell. Tests that call the
    function run, the quickest first; all of the group if none does.
    """
    files, seconds = GROUPS[fault.file], known["seconds"]
    place = f"{fault.file}:{fault.function}"
    concerned = [
        test
        for test, calls in known["calls"].items()
        if any(call == place or call.startswith(f"{place}.") for call in calls)
    ]
    order = sorted(concerned or seconds, key=lambda test: seconds[test])
    named = [file for file in files if any(test.startswith(file) for test in order)]
    if not order:
        return None, 0.0
    with copy.with_fault(fault):
        events, spent = copy.tests(named, order, seconds, budget=budget)
    failed = [event[1] for event in events if event[0] == "failed"]
    if not failed and (known["missing"] or ["unfinished"] in events):
        return None, spent
    return (failed or [""])[0], spent


def search(rows, *, until=None, budget=None, say=print):
    """Yields rows with the tests that kill them."""
    known = {}
    with forked_tests.Copy.made(MODULES) as copy:
        for row in rows:
            if until is not None and time.strftime("%H:%M") >= until:
                break
            files = GROUPS[row.fault.file]
            if files not in known:
                known[files] = baseline(copy, files, measure=budget is None)
                say(f"{len(known[files]['seconds'])} tests of {' '.join(files)}")
            test, seconds = killer(copy, row.fault, known[files], budget)
            outcome = "not noticed so far" if test is None else test or "SURVIVED"
            say(f"{outcome} {seconds} s: {row.fault.file} {row.fault.after!r}")
            if test is not None:
                yield dataclasses.replace(row, killed_by=test, seconds=seconds)


def unnoticed(rows):
    """Yields rows whose recorded test no longer fails."""
    with forked_tests.Copy.made(MODULES) as copy:
        for row in rows:
            with copy.with_fault(row.fault):
                file = row.killed_by.partition("::")[0]
                events, _ = copy.tests([file], [row.killed_by], {})
            if not any(event[0] == "failed" for event in events):
                yield row


def record(found, path=TABLE):
    """Puts a row into the table, which other processes may be changing too."""
    with (path.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = read(path)
        write([found if row.fault == found.fault else row for row in rows], path)


HEADER = ("module", "faults", "tried", "killed", "explained", "left", "CPU s, median", "most")


def markdown(rows):
    """Returns the lines of a table of counts by module."""
    lines = [HEADER, ["---"] * len(HEADER)]
    for file in [*GROUPS, ""]:
        own = [row for row in rows if row.fault.file == file or not file]
        tried = [row for row in own if row.seconds is not None or row.why]
        seconds = [row.seconds for row in own if row.killed_by]
        explained = sum(bool(row.why) for row in own)
        lines.append((
            f"`{file.removeprefix('vit_jax/').removesuffix('.py')}`" if file else "all",
            len(own), len(tried), len(seconds), explained, len(tried) - len(seconds) - explained,
            f"{statistics.median(seconds or [0]):.0f}", f"{max(seconds, default=0):.0f}",
        ))  # fmt: skip
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


def _named(row, words):
    return not words or any(word in row.fault.file for word in words)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("draw", "run", "check", "table"))
    parser.add_argument("words", nargs="*", help="modules to run, by part of their path")
    parser.add_argument("--each", type=int, default=10, help="faults to draw of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--until", help="begin with no fault after this time of day, HH:MM")
    parser.add_argument("--share", type=int, default=50, help="check each so-manieth fault")
    parser.add_argument(
        "--budget", type=float, help="CPU seconds of tests for a fault; of measured files alone"
    )
    parser.add_argument("--survivors", action="store_true", help="run those that survived again")
    options = parser.parse_args()
    rows = read()
    if options.command == "draw":
        write(draw(rows, options.each, options.seed))
    elif options.command == "run":

        def waiting():
            for fault in [row.fault for row in rows if _named(row, options.words)]:
                row = next(row for row in read() if row.fault == fault)  # others may be at work
                survived = row.seconds is not None and not row.killed_by
                if not row.why and (row.seconds is None or (options.survivors and survived)):
                    yield row

        for found in search(waiting(), until=options.until, budget=options.budget):
            record(found)
    elif options.command == "check":
        killed = [row for row in rows if row.killed_by]
        number, source = rotation.number()
        chosen = killed[number % options.share :: options.share]
        print(f"{len(chosen)} of {len(killed)} faults, by {source}")
        lost = [row.fault for row in unnoticed(chosen)]
        print(*(f"not noticed by its test: {fault}" for fault in lost), sep="\n")
        return int(bool(lost) or not chosen)
    else:
        print("\n".join(markdown(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
