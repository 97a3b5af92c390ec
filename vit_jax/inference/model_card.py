"""The README.md of an exported folder, the model's page on the Hugging Face Hub."""

import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

from vit_jax import __version__, config
from vit_jax.inference import loaded_model
from vit_jax.pages import markdown
from vit_jax.pages.document import Table
from vit_jax.runtime import logs
from vit_jax.weights.family import Files

NAME = "README.md"
LIBRARIES = {"hf": "transformers", "timm": "timm", "flax": "transformers"}
LICENSE = re.compile(r"[a-z0-9][a-z0-9.\-]{0,60}", re.ASCII)  # the Hub's identifiers
METRICS = {"top1": "accuracy"}  # the Hub's names for our metrics
SHOWN_CLASSES = 20

TIMM = """\
import timm

model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()  # hf-hub:USER/NAME on the Hub
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))"""
TRANSFORMERS = """\
from transformers import AutoImageProcessor, {model}

processor = AutoImageProcessor.from_pretrained("FOLDER")  # USER/NAME on the Hub
model = {model}.from_pretrained("FOLDER")"""
HERE = """\
import vit_jax

model = vit_jax.load("FOLDER")
print(model.{call}(["cat.jpg"]))"""


def check_license(text: str) -> None:
    """Raises ConfigError unless a text is an identifier of a license, such as `apache-2.0`."""
    if not isinstance(text, str) or not LICENSE.fullmatch(text):
        raise config.ConfigError(
            f"--license={text}: not a license identifier of the Hub, such as apache-2.0"
        )


def title(opened: loaded_model.LoadedModel) -> str:
    """The name of a model, without the folders of weights that are a file of this machine."""
    name = opened.config.name
    return name if opened.kind in loaded_model.RUNS else pathlib.PurePath(name).name


def results(checkpoints: pathlib.Path, step: int) -> dict[str, dict[str, float]]:
    """Results at a step of the run with these checkpoints, by split and metric; {} of no run."""
    # Of no folder above: a mean of a run's checkpoints may lie in the run.
    file = checkpoints.parent / "metrics.jsonl"
    found: dict[str, dict[str, float]] = {}
    for line in logs.read_metrics(file) if file.is_file() else ():
        for role in (key.removesuffix("/split") for key in line if key.endswith("/split")):
            # A final evaluation names the step of the checkpoint that it measured.
            if line.get(f"{role}/step", line["step"]) != step:
                continue
            numbers = {
                key.removeprefix(f"{role}/"): value
                for key, value in line.items()
                if key.startswith(f"{role}/") and isinstance(value, int | float)
            }
            found.setdefault(str(line[f"{role}/split"]), {}).update(numbers)
    return {split: numbers for split, numbers in found.items() if numbers}


def text(
    opened: loaded_model.LoadedModel,
    kind: str,
    documents: Files,
    differences: Sequence[str] = (),
    *,
    license_id: str | None = None,
    measured: Mapping[str, Mapping[str, float]] | None = None,
    rounded: str = "",
) -> str:
    """The card as Markdown, under the fields by which the Hub finds a model.

    `kind` is one of LIBRARIES, `documents` are the JSON files beside the card, `differences` what
    they cannot express, a line each, `license_id` is the Hub's, `measured` are numbers by split and
    metric, `rounded` is the type that the weights were rounded to, if any.
    """
    name, measured = title(opened), measured or {}
    if isinstance(opened.config.loss, config.Regression):
        # The run's is in the scale of its head; that of the folder is in units of the data.
        measured = {
            split: {key: value for key, value in numbers.items() if key != "loss"}
            for split, numbers in measured.items()
        }
    labelled = bool(_outputs(opened))
    fields: dict[str, object] = {
        "library_name": LIBRARIES[kind],
        "pipeline_tag": "image-classification" if labelled else "image-feature-extraction",
        **({"license": license_id} if license_id else {}),
        "tags": ["vision", "vit_jax"],
    }
    if measured:
        task = fields["pipeline_tag"]
        fields["model-index"] = [{"name": name, "results": list(_index(opened, measured, task))}]
    # The Hub reads YAML, of which JSON is a part.
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in fields.items()), "---", ""]
    lines += [f"# {markdown.escape(name)}", "", *_about(opened), ""]
    lines += ["## Use", "", *_code(_foreign(kind, documents))]
    lines += _code(HERE.format(call="predict" if labelled else "embed"))
    if measured:
        lines += ["## Results", "", *_results(opened, measured, differences, rounded)]
    lines += ["## Settings", "", *_settings(opened)]
    return "\n".join(lines).rstrip() + "\n"


def _outputs(opened: loaded_model.LoadedModel) -> tuple[str, ...]:
    """The names of the model's outputs; () for one without a head of classes."""
    headed = opened.config.needs_labels and "head/kernel" not in opened.fresh
    return opened.classes if headed and not opened.projects else ()


def _about(opened: loaded_model.LoadedModel) -> Iterator[str]:
    rows, columns = opened.model.image_size
    size = f"of {rows} x {columns} pixels"
    if longest := opened.config.data.padded:
        size = f"at their own aspect ratio, of at most {longest} patches,"
    yield (
        f"{opened.model.num_params:,} parameters, images {size} in "
        f"{opened.model.channels} channel{'s' * (opened.model.channels > 1)}. "
        f"Written by vit_jax {__version__}."
    )
    classes = _outputs(opened)
    names = ", ".join(map(markdown.escape, classes[:SHOWN_CLASSES]))
    more = ", ..." if len(classes) > SHOWN_CLASSES else ""
    if isinstance(opened.config.loss, config.Regression):
        yield f"It predicts {names}{more}, in the units of the data it was trained on."
    elif classes:
        yield f"Its {len(classes)} classes are {names}{more}."
    else:
        yield "It has no classes: its outputs are features."
    if classes and opened.config.loss.name == "sigmoid":
        yield "An image may be of several classes: each has a sigmoid of its own."
    if opened.temperature is not None:
        yield f"Divide logits by {opened.temperature:.4f} for calibrated probabilities."
    if opened.kind not in loaded_model.RUNS:
        yield (
            f"The weights were read in {opened.kind}'s form; see their authors for license and "
            "training."
        )


def _foreign(kind: str, documents: Files) -> str:
    if kind == "timm":
        return TIMM
    model = documents["config.json"]["architectures"][0]
    return TRANSFORMERS.format(model=f"Flax{model}" if kind == "flax" else model)


def _code(program: str) -> list[str]:
    return ["```python", *program.splitlines(), "```", ""]


def _results(
    opened: loaded_model.LoadedModel,
    measured: Mapping[str, Mapping[str, float]],
    differences: Sequence[str],
    rounded: str,
) -> Iterator[str]:
    rows = [
        (split, metric, f"{value:.4f}")
        for split, numbers in measured.items()
        for metric, value in numbers.items()
        if metric not in ("count", "step")
    ]
    counts = (
        f"{int(numbers['count']):,} images of {split}"
        for split, numbers in measured.items()
        if "count" in numbers
    )
    before = [f"before the weights were rounded to {rounded}"] if rounded else []
    caption = "; ".join((f"Measured on {', '.join(counts)}", opened.selection, *before))
    # Whoever evaluates the folder with its own views gets other numbers.
    if views := "; ".join(line for line in differences if line.startswith("data.")):
        caption += f". With preprocessing that this folder cannot express: {views}"
    yield from markdown.table(
        Table(header=("split", "metric", "value"), rows=rows, caption=caption)
    )


def _index(
    opened: loaded_model.LoadedModel, measured: Mapping[str, Mapping[str, float]], task: object
) -> Iterator[dict[str, object]]:
    data = opened.config.data
    dataset = data.name or data.source
    for split, numbers in measured.items():
        values = [
            {"type": METRICS.get(metric, metric), "name": metric, "value": value}
            for metric, value in numbers.items()
            if metric not in ("count", "step")
        ]
        yield {
            "task": {"type": task},
            "dataset": {"name": dataset, "type": dataset, "split": split},
            "metrics": values,
        }


def _settings(opened: loaded_model.LoadedModel) -> Iterator[str]:
    changed = config.changed(opened.config, free=False)
    rows = [(key, config.show(value)) for key, value in changed.items() if key != "name"]
    # A path says where files lay on somebody's machine, and often who that was.
    # Names of models, such as ViT-B/16, are no paths.
    shown = [(key, value) for key, value in rows if "/" not in value or key.startswith("model.")]
    caption = "Other options have their defaults, or name files of the machine that trained it."
    yield from markdown.table(Table(header=("option", "value"), rows=shown, caption=caption))
