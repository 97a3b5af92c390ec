"""The pages of the documentation: their blocks, the commands in these, and which cannot be run."""

import dataclasses
import re
import shlex

import runs

DOCS = runs.ROOT / "docs"
# README.md and the pages that people write; findings.md and its like are written by commands.
PAGES = (
    runs.ROOT / "README.md",
    runs.ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("*/README.md")),
)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)

# Why a command is checked, but not run: the first pattern found in it counts.
NOT_RUN = {
    r"^(git|gcloud|ssh-keygen|apt-get|docker|sky|kubectl) ": "acts outside this project",
    r"^(pip|python -m venv|peer/bin/pip|\.) ": "installs; .ci/run does it",
    r"^python -c ": "shows devices",
    r"^(launch/|\.ci/|\.venv/|mkdocs )": "tests/launch, .ci/run",
    r"^python (tests/|-m research)": "hours",
    r"launch/tpu": "needs Google Cloud; tests/launch has a stand-in for it",
    r"gs://": "needs a bucket; tests/checkpoints/test_bucket_runs.py has one",
    r"s3://": "needs a bucket; tests/data/test_bucket_services.py has one",
    r"^vit_jax preflight": "compiles for minutes; tests/preflight",
    r"^vit_jax bench ": "measures for minutes; tests/benchmarks",
    r"^vit_jax train cifar10/": "needs CIFAR-10, and an hour",
    r"^vit_jax (train|transfer) adapt/": "downloads; tests/studies/transfer/test_adapt_rows.py",
    r"^vit_jax segment": "needs masks; tests/inference/segmentation",
    r"^vit_jax selftest": "tests/training/test_selftest.py",
    r"^vit_jax prepare (?!.*--dry-run)": "needs downloads; tests/data/prepare",
    r"^vit_jax reproduce (?!table)": "hours; tests/studies/reproduce",
    r"^vit_jax transfer (?!.*(--dry-run|image_folder))": "the paper's run; tests/studies/transfer",
    r"^vit_jax train (pretrain|finetune|masked|baseline)/(?!.*--smoke)": "the paper's run; --smoke",
    r"^vit_jax train tfds|imagenet|objectnet|cifar10_webp|--dedup-against": "needs a dataset "
    "that is not here",
    r"data\.channels=13": "needs such images; tests/data/test_depth.py",
    r"--to=peft|=BASE\b": "needs a run with LoRA on a base; tests/weights/test_peft_export.py",
    r"--to=onnx": "needs jax2onnx; tests/inference/test_onnx_export.py",
    r"--serve": "waits for a browser; tests/inference/inspect",
    r"--config=my_configs": "names a file of the reader",
    r"\bNAME\b": "names what the reader has",
    r"loggers[=.](wandb|mlflow)": "needs an extra; tests/runtime/test_trackers.py",
}
# Python blocks that need what no environment of the tests has.
NOT_IMPORTED = {
    "timm": "PyTorch", "transformers": "PyTorch", "onnxruntime": "an extra runtime",
    "openvino": "an extra runtime",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str


def blocks(page, *languages):
    """Yields the blocks of a page in these languages."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        if match[2] in languages:
            line = text[: match.start()].count("\n") + 1
            indent = len(match[1])
            body = "".join(row[indent:] for row in match[3].splitlines(keepends=True))
            yield Block(str(page.relative_to(runs.ROOT)), line, match[2], body)


def commands(block):
    """Yields the commands of a shell block, one text each, without comments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        part = []
        for word in [*words, "&&"]:
            if word == "&&":
                if part:
                    yield shlex.join(part)
                part = []
            else:
                part.append(word)


def without_redirection(command):
    """The words of a command, and the file that its output goes to, or None."""
    words = shlex.split(command)
    if ">" not in words:
        return words, None
    at = words.index(">")
    return words[:at], words[at + 1]


def reason(command):
    """Why a command is not run, or None."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), None)
