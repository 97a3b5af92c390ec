"""Imports weights of other projects, recognized by their contents.

Training programs nest a model in others (`model.module.`, `teacher.backbone.`, `opt/target/`),
wrappers add a part to names (torch.compile's `_orig_mod.`), and DINOv2 groups layers in chunks
(`blocks.1.7.`, where 7 counts all layers). The model is found below such names.
"""

import dataclasses
import heapq
import json
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from vit_jax import config, models
from vit_jax.models import variants
from vit_jax.weights import (
    adapting,
    flax_names,
    json_fields,
    mapping,
    orbax_files,
    peft_files,
    projection_heads,
    readers,
)
from vit_jax.weights.arrays import Arrays, WeightsError
from vit_jax.weights.families import google, huggingface, timm
from vit_jax.weights.family import FAMILIES, NOT_OFFERED, Family, Files, Hints

BESIDE = ("config.json", huggingface.PREPROCESSOR, huggingface.PROCESSOR, timm.OPEN_CLIP)
INDEX = ".index.json"
# Files of weights in a folder; the first that exists is taken.
WHOLE = (
    "model.safetensors", "pytorch_model.safetensors", "open_clip_model.safetensors",
    f"model.safetensors{INDEX}", "pytorch_model.bin", "open_clip_pytorch_model.bin",
    f"pytorch_model.bin{INDEX}", "flax_model.msgpack",
)  # fmt: skip
HEAD = "vit_jax.head"  # in the metadata of a file that has no config.json
ONE_OUTPUT = "the head has one output, of which softmax always makes 1"
WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
BLOCK = re.compile(r"((?:^|.*\.)blocks\.)\d+\.")
CHUNK = re.compile(r"((?:^|.*\.)blocks\.)\d+\.(\d+\.)")
# Of several models in a file: the evaluated one before the trained one, moments last.
BETTER = {"params", "target", "teacher", "ema"}  # or a word of it, as in model_ema
WORSE = re.compile(r"(?:^|[./])(?:student|mu|nu|opt_state|optimizer|state|exp_avg\w*)(?=[./])")
# Forms of a layer that need another step before a model can use them.
FORMS = (
    (r"lora_[AB]|lora_(?:up|down)|base_layer",
     "LoRA beside its layers; merge them first (PEFT: merge_and_unload)"),
    (r"parametrizations|weight_[vg]",
     "layers by their parametrization; remove it first (torch: remove_parametrizations)"),
    (r"weight_(?:orig|mask)", "pruned layers and their masks; apply them first (prune.remove)"),
    (r"absmax|quant_map|quant_state|SCB|qweight|qzeros|weight_scale(?:_inv)?|input_scale",
     "quantized layers; save it in float32, float16 or bfloat16"),
)  # fmt: skip
TRIED = 16  # prefixes
# Meta's names of the files of an encoder, and of the linear classifier on its features.
ENCODER = re.compile(r"(\w+?)_pretrain[\w-]*\.pth")
CLASSIFIER = re.compile(r"(\w+?)(?:_imagenet1k)?_(?:linear4?_head|linearweights)[\w-]*\.pth")
OUTER = 8  # modules around a backbone that may hold its head
# Layers outside a backbone that belong to it; the first three are one, by its own name.
HEADS = re.compile(
    r"(?:(head|classifier|fc|linear_head)|head_dist|fc_norm|norm|pooler\.dense)\.(?:weight|bias)"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """A model from any project with its parameters (NumPy float32)."""

    kind: str  # the project it came from
    params: models.Params
    spec: mapping.ModelSpec
    report: mapping.MappingReport
    assumed: tuple[str, ...] = ()  # a line for each reason
    projection: models.Params | None = None  # the head of self-distillation, if that is wanted


def load(
    path: pathlib.Path,
    overrides: Mapping[str, str] | None = None,
    *,
    wanted: config.Config | None = None,
) -> Weights:
    """Loads the weights in a file or folder, their model inferred.

    Args:
      path: a .npz or .safetensors file, or a folder with one and its config.json.
      overrides: options by dotted name, which replace inferred ones; positions are resized to
        another `data.image_size`.
      wanted: the config that will use the weights. It provides what the file leaves open: the
        number of heads, and the image size if it has equally many patches.

    Raises WeightsError, in one line with every problem.
    """
    overrides = overrides or {}
    try:
        found, inferred = _recognize(path, overrides, wanted)
        _check_offered(inferred, _settled(inferred, overrides, wanted))
        # Shapes are compared at the image size of the file; positions are resized to another
        # afterwards.
        sizeless = {key: text for key, text in overrides.items() if key != "data.image_size"}
        spec = _override(inferred, sizeless)
        rules = found.family.rules(found.arrays.specs, spec)
        params, report = mapping.read_params(found.arrays, rules, found.family.dropped, spec)
        dropped = dict(sorted({**report.dropped, **found.beside}.items()))
        report = dataclasses.replace(report, dropped=dropped, prefix=found.prefix)
        final = _override(inferred, overrides)
        if final.data.image_size != spec.data.image_size:
            target = mapping.create_classifier(final)
            params, change = adapting.fit_params(params, spec, target, keep_head=True)
            report = dataclasses.replace(report, resized=change.resized)
        projection = None
        if wanted is not None and wanted.dino is not None and wanted.init_head == "keep":
            width = variants.pooled_features(final.model)
            projection = projection_heads.from_arrays(found.whole, found.prefix, wanted.dino, width)
            read = projection_heads.names(found.whole, found.prefix, wanted.dino)
            taken = read if projection else set()
            # The report calls arrays below the prefix by the rest of their names.
            taken |= {name.removeprefix(found.prefix) for name in taken}
            dropped = {name: why for name, why in report.dropped.items() if name not in taken}
            report = dataclasses.replace(report, dropped=dropped)
    except config.UserError as error:
        raise _at(path, error) from error
    return Weights(
        kind=found.family.project,
        params=params,
        spec=final,
        report=report,
        assumed=assumptions(inferred, overrides, wanted=wanted),
        projection=projection,
    )


def read_spec(path: pathlib.Path, wanted: config.Config | None = None) -> mapping.ModelSpec:
    """The model in a file or folder, without its arrays; takes and raises as `load`."""
    try:
        return _recognize(path, {}, wanted)[1]
    except config.UserError as error:
        raise _at(path, error) from error


def assumptions(
    inferred: mapping.ModelSpec,
    overrides: Mapping[str, str] | None = None,
    *,
    wanted: config.Config | None = None,
) -> tuple[str, ...]:
    """The assumptions of `load` about a source, one line per reason; arguments as in `load`."""
    settled = _settled(inferred, overrides or {}, wanted)
    reasons: dict[str, list[str]] = {}
    for key, why in inferred.assumed.items():
        if key not in settled:
            value = f"={config.show(config.get(inferred, key))}" if _is_option(key) else ""
            reasons.setdefault(why, []).append(f"{key}{value}")
    return tuple(f"assumed {', '.join(set_)}: {why}" for why, set_ in reasons.items())


def _check_offered(inferred: mapping.ModelSpec, settled: set[str]) -> None:
    """Raises WeightsError for preprocessing of the authors that this package lacks."""
    for key, why in inferred.assumed.items():
        if key not in settled and why.startswith(NOT_OFFERED):
            other = f"{key}={config.show(config.get(inferred, key))}"
            raise WeightsError(
                f"{why.removeprefix(NOT_OFFERED)}: there are no such views here; to go on with "
                f"others, set {other}"
            )


def _is_option(key: str) -> bool:
    return key.startswith(("model.", "data."))


def _settled(
    inferred: mapping.ModelSpec, overrides: Mapping[str, str], wanted: config.Config | None
) -> set[str]:
    """The options that need no assumptions, or none that matter."""
    others = set(overrides)
    if "loss.name" in overrides or (wanted is not None and wanted.init_head != "keep"):
        others |= {key for key, why in inferred.assumed.items() if why == ONE_OUTPUT}
        others |= {key for key in inferred.assumed if key.startswith("loss.name=")}
    if wanted is not None or "data.image_size" in overrides:
        others.add(huggingface.OWN_SIZE)
    if overrides.get("model.activation", "gelu") != "gelu":
        others.add("model.gelu")
    if wanted is not None:  # which has its own where it differs, and of some options always
        keep = wanted.init_head == "keep"
        known = adapting.numerics(inferred, keep_head=keep, channels=wanted.data.channels)
        fixed = {*known, "model.heads", "model.position"}
        options = set(filter(_is_option, inferred.assumed))
        others |= options - fixed
        others |= {key for key in options if config.get(wanted, key) != config.get(inferred, key)}
    # If an image size could determine the grid of positions, it already has.
    return others - {"data.image_size"}


def _at(path: pathlib.Path, error: config.UserError) -> WeightsError:
    text = str(error)
    return WeightsError(text if text.startswith(str(path)) else f"{path}: {text}")


def _override(spec: mapping.ModelSpec, overrides: Mapping[str, str]) -> mapping.ModelSpec:
    if not overrides:
        return spec
    values = config.to_dict(config.Config(model=spec.model, data=spec.data))
    if "model.pooling" in overrides:  # an existing class token stays, whatever the pooling
        token, pooling = models.has_class_token(spec.model), overrides["model.pooling"]
        own = models.default_class_token(pooling)
        values["model"]["class_token"] = None if token == own else token
    cfg = config.build(config.override(values, overrides))
    return dataclasses.replace(spec, model=models.complete(cfg.model), data=cfg.data)


# Recognition


class Found(NamedTuple):
    """The arrays of a model by its family's names, and where they were."""

    arrays: Arrays
    family: Family
    whole: Arrays  # of the file, by its own names
    prefix: str = ""
    beside: Mapping[str, str] = {}  # other arrays, each with why it is left out
    assumed: Mapping[str, str] = {}


def _recognize(
    path: pathlib.Path, overrides: Mapping[str, str], wanted: config.Config | None
) -> tuple[Found, mapping.ModelSpec]:
    """The arrays with their family, and the model at its stored image size."""
    if peft_files.recognizes(path):
        arrays, files = _with_adapter(path, overrides.get("init_from"))
    else:
        arrays, files = _open_arrays(path)
    found = find_family(arrays, files)
    size, heads = (wanted.data.image_size, wanted.model.heads) if wanted else (None, None)
    given = config.build(config.override({}, overrides))
    if "data.image_size" in overrides:
        size = given.data.image_size
    if "model.heads" in overrides:
        heads = given.model.heads
    hints = Hints(files=files, image_size=size, heads=heads)
    found = found._replace(arrays=found.family.prepared(found.arrays, hints))
    spec = found.family.read_spec(found.arrays.specs, hints)
    if wanted is not None and "model.heads" not in overrides and spec.model.heads == heads:
        spec = _with_heads(found, spec, hints, wanted.model)
    spec = with_head(spec, arrays.metadata)
    return found, dataclasses.replace(spec, assumed={**spec.assumed, **found.assumed})


def _with_heads(
    found: Found, spec: mapping.ModelSpec, hints: Hints, wanted: config.Model
) -> mapping.ModelSpec:
    """The model whose heads are those of the run `wanted`, if its file does not say others.

    A run of another width has the heads of another model: the usual ones of this width, if known.
    """
    alone = found.family.read_spec(found.arrays.specs, dataclasses.replace(hints, heads=None))
    usual = alone.model.heads
    if usual == spec.model.heads:
        return spec
    if usual is not None and wanted.width != spec.model.width:
        return alone
    why = "as in the run; the file does not say"
    if usual is not None:
        why += f", and layers of width {spec.model.width} mostly have {usual}"
    return dataclasses.replace(spec, assumed={**spec.assumed, "model.heads": why})


def _open_arrays(path: pathlib.Path) -> tuple[Arrays, Files]:
    if path.is_dir():
        folder = path
        file = next((folder / n for n in WHOLE if (folder / n).is_file()), None)
        if file is None:
            if orbax_files.recognizes(folder):
                return readers.open_orbax(folder), {}
            if arrays := _with_classifier(folder):
                return arrays, {}
            there = sorted(folder.iterdir())
            unread = [path.name for path in there if path.suffix.lower() in readers.UNREAD]
            if unread:
                readers.open_arrays(folder / unread[0])  # which raises with the reason
            if files := [one.name for one in there if readers.is_weights(one)]:
                shown = ", ".join(files[:3]) + ", ..." * (len(files) > 3)
                raise WeightsError(f"{path}: holds {shown}; name the file")
            raise WeightsError(
                f"{path}: not a checkpoint: neither a run directory (no checkpoints/ inside) nor a "
                f"folder of weights (no {WHOLE[0]} or the like)"
            )
        arrays = (readers.open_shards if file.name.endswith(INDEX) else readers.open_arrays)(file)
    elif arrays := _with_classifier(path):
        return arrays, {}
    else:
        folder, arrays = path.parent, readers.open_arrays(path)
    return arrays, {} if path.suffix.lower() == ".npz" else read_beside(folder)


def read_beside(folder: pathlib.Path) -> Files:
    """The JSON files of a folder that are read with all arrays there but those of a .npz file."""
    return {n: readers.read_json(folder / n) for n in BESIDE if (folder / n).is_file()}


def _with_adapter(folder: pathlib.Path, given: str | None) -> tuple[Arrays, Files]:
    below = peft_files.base(folder, given)
    if peft_files.recognizes(below):
        raise WeightsError(f"{below}: is an adapter too; name the weights below it")
    if (below / "checkpoints").is_dir():
        raise WeightsError(
            f"{below}: is a run, and PEFT adds to weights in another form; write them with "
            f"`vit_jax convert --checkpoint={below} --to=hf --output=BASE`, and name BASE"
        )
    plain, files = _open_arrays(below)
    arrays = peft_files.merged(folder, plain)
    fields = dict(files.get("config.json", {}))
    if fields and (count := peft_files.outputs(arrays, plain)) is not None:
        # The base's head gives the names; a folder of PEFT has none of its own.
        for key in ("id2label", "label2id", "problem_type", "num_classes", "label_names"):
            fields.pop(key, None)
        files = {**files, "config.json": {**fields, "num_labels": count}}
    return arrays, files


def _with_classifier(path: pathlib.Path) -> Arrays | None:
    """An encoder and its linear classifier as Meta publishes them, two files; None without both.

    `path` is their folder, or the classifier; raises WeightsError where it leaves several open.
    """
    if not path.is_dir() and not (CLASSIFIER.fullmatch(path.name) and path.is_file()):
        return None
    folder = path if path.is_dir() else path.parent
    encoders, classifiers = (
        {
            file: found[1]
            for file in sorted(folder.iterdir())
            if (found := form.fullmatch(file.name))
        }
        for form in (ENCODER, CLASSIFIER)
    )
    if path in classifiers:
        classifiers = {path: classifiers[path]}
    pairs = [(encoder, classifier) for classifier, its in classifiers.items()
             for encoder, name in encoders.items() if name == its]  # fmt: skip
    if not pairs and path in classifiers:
        raise WeightsError(
            "is a linear classifier alone; put its encoder beside it, "
            f"{classifiers[path]}_pretrain.pth"
        )
    if len(pairs) > 1:
        names = ", ".join(f"{one.name} of {encoder.name}" for encoder, one in pairs[:4])
        raise WeightsError(f"holds several linear classifiers ({names}); name the file of one")
    if not pairs:
        return None
    encoder, classifier = (readers.open_arrays(file) for file in pairs[0])
    file = pairs[0][1].name
    ends = [(name.rpartition(".")[2], name) for name in classifier.specs]
    parts = [(end, name) for end, name in ends if end in ("weight", "bias")]
    if sorted(end for end, _ in parts) != ["bias", "weight"]:
        raise WeightsError(f"{file}: is not one linear layer")
    heads = {f"head.{end}": name for end, name in parts}
    specs = {**encoder.specs, **{name: classifier.specs[one] for name, one in heads.items()}}
    # DINO's classifier of one layer reads class token and mean of the patches number by number.
    width = next((s.shape[-1] for n, s in encoder.specs.items() if n.endswith("cls_token")), 0)
    paired = "linearweights" in file and specs["head.weight"].shape[-1:] == (2 * width,)

    def read(name: str) -> np.ndarray:
        if name not in heads:
            return encoder.read(name)
        values = classifier.read(heads[name])
        if paired and name == "head.weight":
            values = values.reshape(len(values), -1, 2).swapaxes(1, 2).reshape(values.shape)
        return values

    return Arrays(specs, read)


def with_head(spec: mapping.ModelSpec, metadata: Mapping[str, str]) -> mapping.ModelSpec:
    """Adds what a file's metadata says of its head, which a config.json beside it may not know.

    Raises WeightsError for damaged metadata.
    """
    if spec.headless:
        return spec
    assumed = dict(spec.assumed)
    if HEAD in metadata:
        try:
            said = json.loads(metadata[HEAD])
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise WeightsError(f"{HEAD}: must be a JSON object")
        count = spec.model.num_classes or 0
        names = json_fields.labels(said, "label_names", count) or spec.classes
        spec = dataclasses.replace(spec, classes=names)
        if loss := json_fields.loss(said.get("problem_type")):
            assumed.pop(google.SOFTMAX, None)
            spec = dataclasses.replace(spec, loss=loss, assumed=assumed)
    if spec.loss is None and spec.model.num_classes == 1:
        assumed.pop(google.SOFTMAX, None)
        assumed["sigmoid for softmax"] = ONE_OUTPUT
        spec = dataclasses.replace(spec, loss="sigmoid", assumed=assumed)
    return spec


def find_family(arrays: Arrays, files: Files) -> Found:
    """Finds the model in a file; raises WeightsError where there is none that is known."""
    arrays = flax_names.as_torch(arrays)
    arrays = _renamed(arrays, _unwrapped(arrays.specs))
    # A model at the top level needs no search for its prefix.
    if family := _family(arrays, files):
        _check_forms(arrays.specs)
        return Found(arrays, family, arrays)
    found = []
    # A file may have an anchor under each of thousands of prefixes, and each try reads all names.
    for prefix in heapq.nsmallest(TRIED, _prefixes(arrays.specs), key=_rank):
        # What lies below the prefix of a model is part of it, not another model.
        inside = any(prefix.startswith(outer.prefix) for outer in found)
        below, beside = _below(arrays, prefix)
        if not inside and (family := _family(below, files)):
            reasons = {
                name: mapping.reason(name, family.dropped, arrays.specs) or f"not under {prefix}"
                for name in beside
            }
            found.append(Found(below, family, arrays, prefix, reasons))
    if not found:
        _check_forms(arrays.specs)
        if kind := json_fields.text(files.get("config.json", {}), "model_type", ""):
            raise huggingface.unrecognized(kind)
        if architecture := timm.architecture(timm.read_fields(files)):
            ours = (family for family in FAMILIES if isinstance(family, timm.Timm))
            anchors = dict.fromkeys(anchor for family in ours for anchor in family.anchors)
            raise WeightsError(
                f"architecture={architecture[:80]}: the file has no patch embedding that is read "
                f"for timm's models: {', '.join(anchors)}"
            )
        names = ", ".join(sorted(arrays.specs)[:3]) or "no arrays at all"
        projects = ", ".join(dict.fromkeys(family.project for family in FAMILIES))
        raise WeightsError(
            f"is not one of the supported model layouts ({projects}); it contains {names}, ..."
        )
    first, *others = found
    _check_forms(first.arrays.specs, first.prefix)  # a projection head beside it may have any
    if others:
        choice = f"the model under {first.prefix}, not that under {others[0].prefix}"
        first = first._replace(assumed={choice: "the file holds several"})
    return first


def _check_forms(names: Iterable[str], prefix: str = "") -> None:
    """Raises WeightsError where layers are stored as no model here computes them."""
    names = list(names)
    for form, what in FORMS:
        pattern = re.compile(rf"(?:.*\.)?(?:{form})(?:\..*)?")
        if name := next((name for name in names if pattern.fullmatch(name)), ""):
            raise WeightsError(f"{prefix}{name}: the file holds {what}")


def _family(arrays: Arrays, files: Files) -> Family | None:
    return next((one for one in FAMILIES if one.recognizes(arrays.specs, files)), None)


def _unwrapped(names: Iterable[str]) -> dict[str, str]:
    """Names without wrappers and chunks, by the names in the file."""
    plain = {name: WRAPPERS.sub("", name) for name in names}
    blocks = {short: found[1] for short in plain.values() if (found := BLOCK.match(short))}
    whole = {blocks[short] for short in blocks if not CHUNK.match(short)}  # models without chunks

    def one(short: str) -> str:
        found = CHUNK.match(short)
        if found is None or found[1] in whole:
            return short
        return f"{found[1]}{found[2]}{short[found.end() :]}"

    return {name: one(short) for name, short in plain.items()}


def _renamed(arrays: Arrays, names: Mapping[str, str]) -> Arrays:
    """The arrays under other names, by their names; raises WeightsError where two are the same."""
    long: dict[str, str] = {}
    for name, short in names.items():
        if short in long:
            raise WeightsError(f"{long[short]} and {name} are the same array")
        long[short] = name
    specs = {short: arrays.specs[name] for short, name in long.items()}
    return Arrays(specs, lambda short: arrays.read(long[short]), arrays.metadata)


def _prefixes(names: Iterable[str]) -> Iterator[str]:
    """The prefixes below which models could be, each once."""
    anchors = dict.fromkeys(anchor for family in FAMILIES for anchor in family.anchors)
    seen: set[str] = set()
    for name in names:
        for anchor in anchors:
            prefix = name.removesuffix(anchor)
            if prefix != name and prefix.endswith((".", "/")) and prefix not in seen:
                seen.add(prefix)
                yield prefix


def _rank(prefix: str) -> tuple[bool, int, int, str]:
    better = BETTER & set(re.split(r"[./_]", prefix))  # two in ema_params, beside params
    # Moments last, averages first, then the outermost; the prefix itself makes the order of equals
    # fixed.
    return bool(WORSE.search(prefix)), -len(better), len(prefix), prefix


def _below(arrays: Arrays, prefix: str) -> tuple[Arrays, list[str]]:
    """The arrays below a prefix, with a head outside it; and the names of all others."""
    names = {name: name.removeprefix(prefix) for name in arrays.specs if name.startswith(prefix)}
    known = set(names.values())
    head = next((f.head for f in FAMILIES if not known.isdisjoint(f.anchors)), Family.head)
    ends = [0, *(found.end() for found in re.finditer(r"[./]", prefix[:-1]))]
    # From the inside out, so that the nearest head wins.
    for end in ends[::-1][:OUTER]:
        outer = [name for name in arrays.specs if name not in names]
        for name in (name for name in outer if name.startswith(prefix[:end])):
            if found := HEADS.fullmatch(name, end):
                short = f"{head}{name[found.end(1) :]}" if found[1] else name[end:]
                if short not in known:
                    names[name] = short
                    known.add(short)
    return _renamed(arrays, names), [name for name in arrays.specs if name not in names]
