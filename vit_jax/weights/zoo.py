"""Published checkpoints by name, with their location, model and published accuracy.

Only the accuracies of `bundled.csv`, whose weights come with the package, are our measurements. The
others are top-1 on ImageNet in percent, as printed in the source; empty fields are unpublished. The
table is `zoo.csv`; names of files come from
  VT  github.com/google-research/vision_transformer @c6de1e5, README.md and vit_jax.ipynb
  BT  github.com/google-research/big_transfer @140de6e, README.md
  TM  github.com/huggingface/pytorch-image-models, timm/models; accuracies: timm's own evaluation,
      results/results-imagenet.csv @0173a13
and, for sam and gsam, from scripts that download them. `backbones.csv` has those of other authors,
with their licenses: names and licenses of timm/ are those of timm 1.0.31, timm/models; tips/ is
from README.md of github.com/google-deepmind/tips @4db271d.
"""

import csv
import dataclasses
import fnmatch
import math
import os
import pathlib
import re
from typing import Any, NamedTuple

from vit_jax import config
from vit_jax.utils import storage
from vit_jax.weights import hub
from vit_jax.weights.arrays import WeightsError

BUCKET = "gs://vit_models"
TABLES = tuple(
    pathlib.Path(__file__).with_name(f"{name}.csv") for name in ("zoo", "backbones", "bundled")
)
BUNDLED = pathlib.Path(__file__).with_name("bundled")  # a folder for each of its table
# Other files in a repository of the Hub.
ON_HUB = {"huggingface": ("config.json", "preprocessor_config.json"), "timm": ("config.json",)}
# Datasets by their names in file names.
DATA = {"i21k": "ImageNet-21k", "i1k": "ImageNet", "imagenet2012": "ImageNet"}
REPORTS = {
    "imagenet21k": "vision_transformer",
    "imagenet21k+imagenet2012": "vision_transformer",
    "augreg": "vision_transformer",
    "bit": "big_transfer",
    "timm": "timm",
    "cifar10": "vit_jax, on CIFAR-10",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedFile(hub.Download):
    """A published checkpoint."""

    layout: str  # file format: google, bit, tips, timm or huggingface
    model: str  # variant
    data: str  # training data
    image_size: int | None = None  # side of its images; None if unknown, or for a ResNet
    preprocessing: str = ""  # differences from a bilinear resize to values from -1 to 1
    # Accuracy on ImageNet, after fine-tuning if it was not trained on ImageNet; of one that
    # comes with the package, on its own data.
    top1: float | None = None
    license: str = ""  # as its publisher names it; empty for Google's, which is apache-2.0
    # `gated` if its publisher requires a request, `bundled` if it comes with the package.
    access: str = ""

    @property
    def collection(self) -> str:
        """The prefix of its name."""
        return self.name.partition("/")[0]

    @property
    def reported_by(self) -> str:
        """The source of its accuracy; empty if unpublished."""
        return "" if self.top1 is None else REPORTS[self.collection]


# Any of the 52,268 files of How to train your ViT; `best_of_augreg` finds the best.
AUGREG_FILE = re.compile(
    r"((?:R\d*_)?(?:Ti|S|B|L)_\d+)-(i1k|i21k)[\w.]*-[\w.\-]+?"
    r"(?:--([a-z][\w.]*)-steps_\w+-lr_[\d.]+-res_(\d+))?",
    re.ASCII,
)


def entries(model: str | None = None) -> list[PublishedFile]:
    """The published checkpoints in order, of variants such as `ViT-B*`."""
    everything = []
    for table in TABLES:
        with table.open(encoding="utf-8", newline="") as file:
            everything += [_parse_row(row) for row in csv.DictReader(file)]
    if model is None:
        return everything
    return [
        e
        for e in everything
        if fnmatch.fnmatchcase(e.model.lower(), model.replace("_", "/").lower())
    ]


def find_published(name: str) -> PublishedFile:
    """The checkpoint of a name; raises WeightsError with the nearest name."""
    everything = {entry.name: entry for entry in entries()}
    if name in everything:
        return everything[name]
    if len(same := [other for other in everything if other.lower() == name.lower()]) == 1:
        return everything[same[0]]
    file = name.removeprefix("augreg/").removesuffix(".npz")
    # The files of How to train your ViT are too many for the table; their names say what they are.
    if name.startswith("augreg/") and (match := AUGREG_FILE.fullmatch(file)):
        short, data, tuned, side = match.groups()
        return PublishedFile(
            name=name,
            urls=(hub.parse_address(f"{BUCKET}/augreg/{file}.npz"),),
            layout="google",
            model=variant(short),
            data=", ".join(DATA.get(one, one) for one in (data, tuned) if one),
            image_size=int(side or 224),
        )
    hint = config.suggest(name, list(everything))
    many = "; `vit_jax list --weights` shows all" if "did you mean" not in hint else hint
    raise WeightsError(f"{name}: no such run, file or folder, and no published checkpoint{many}")


def resolve(reference: str) -> pathlib.Path:
    """The file or folder of a path, a published name or a URL.

    Downloads missing files; raises WeightsError on failure.
    """
    path = pathlib.Path(os.path.expanduser(reference))  # noqa: PTH111 (an unknown ~user stays)
    if path.exists():
        return path
    if "://" not in reference:
        entry = find_published(reference)
        return hub.fetch(entry) if entry.urls else BUNDLED / entry.name
    if name := hub_repository(reference):
        # transformers 5 writes the processor of some models into the last of these.
        beside = ("config.json", "preprocessor_config.json", "processor_config.json")
        urls = _hub(name, *beside)
        # Usual fields stand for a processor's file that is missing, nothing does for config.json.
        return hub.fetch(hub.Download(name=name, urls=urls, optional=urls[1:3]))
    return hub.fetch(reference)


def hub_repository(reference: str) -> str | None:
    """The repository on the Hub, `USER/NAME`, of whose page this is the address."""
    page = re.fullmatch(rf"{hub.HUB}/([\w.\-]+/[\w.\-]+?)/?", reference, re.ASCII)
    return page[1] if page else None


def variant(name: str) -> str:
    """The model of a published name: `R50_L_32` and `R50+L/32` are R50+ViT-L/32."""
    parts = re.fullmatch(r"(?:(R\d*)[_+])?(?:ViT-)?([A-Za-z]+)[_/](\d+)", name, re.ASCII)
    if parts is None:
        return name
    return f"{parts[1]}+" * bool(parts[1]) + f"ViT-{parts[2]}/{parts[3]}"


def _hub(name: str, *beside: str) -> tuple[str, ...]:
    folder = f"{hub.HUB}/{name}/resolve/main"
    return (*(f"{folder}/{file}" for file in beside), f"{folder}/model.safetensors")


def _parse_row(row: dict[str, str]) -> PublishedFile:
    if (BUNDLED / row["name"]).is_dir():
        urls = ()
    elif row.get("file"):
        urls = (hub.parse_address(row["file"]),)
    else:
        urls = _hub(row["name"], *ON_HUB[row["layout"]])
    numbers = {"image_size": int, "mib": float, "top1": float}
    known: dict[str, Any] = {
        key: numbers.get(key, str)(text) for key, text in row.items() if text and key != "file"
    }
    return PublishedFile(urls=urls, **known)


# The index of How to train your ViT

# The columns used, of 21.
COLUMNS = ("name", "ds", "final_val", "filename")
COLUMNS += ("adapt_ds", "adapt_final_val", "adapt_filename", "adapt_resolution")


class Upstream(NamedTuple):
    """A pre-trained model of How to train your ViT, and its best fine-tuning on ImageNet."""

    model: str
    data: str
    val: float  # best upstream validation accuracy, at the end
    file: str  # a name for `zoo.find_published`
    tuned_file: str = ""
    tuned_val: float | None = None
    resolution: str = ""


def best_of_augreg(index: pathlib.Path) -> dict[str, Upstream]:
    """For every variant, the model of ImageNet-21k with the best final upstream accuracy.

    How to train your ViT has 759 pre-trained models, and one line per fine-tuning run. `index` is a
    copy of augreg/index.csv, whose column `final_val` decides. Raises WeightsError.
    """
    found: dict[str, Upstream] = {}
    line = 1
    try:
        with (
            storage.errors_as(WeightsError, f"{index}: cannot be read"),
            index.open(encoding="utf-8", newline="") as file,
        ):
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise WeightsError(f"{index}: has no column {missing[0]}")
            for row in reader:
                line = reader.line_num
                # What DictReader puts in place of missing columns.
                if None in row.values():
                    raise ValueError("too few columns")
                val, tuned = (float(row[f"{k}final_val"] or "nan") for k in ("", "adapt_"))
                if math.isnan(val) or row["ds"] != "i21k":
                    continue
                imagenet = row["adapt_ds"] == "imagenet2012" and not math.isnan(tuned)
                one = Upstream(
                    model=variant(row["name"]),
                    data=row["ds"],
                    val=val,
                    file=f"augreg/{row['filename']}",
                    tuned_file=f"augreg/{row['adapt_filename']}" if imagenet else "",
                    tuned_val=tuned if imagenet else None,
                    resolution=row["adapt_resolution"] if imagenet else "",
                )
                if one.model not in found or _merit(one) > _merit(found[one.model]):
                    found[one.model] = one
    except (ValueError, csv.Error) as error:
        raise WeightsError(f"{index}: line {line}: {error}") from error
    return found


def _merit(one: Upstream) -> tuple[float, float]:
    # A pre-trained model has a row for each of its fine-tunings, all with one `val`: the best of
    # them on ImageNet stands for it.
    return one.val, -1.0 if one.tuned_val is None else one.tuned_val
