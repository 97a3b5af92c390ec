"""Published checkpoints by name: where they are, what they are, and what they came to.

Nothing here was measured by us. Accuracies are top-1 on ImageNet in per cent, as their source
prints them; an empty place is what no source says. Names of files come from
  VT  github.com/google-research/vision_transformer @c6de1e5, README.md and vit_jax.ipynb
  BT  github.com/google-research/big_transfer @140de6e, README.md
  TM  github.com/huggingface/pytorch-image-models, timm/models; accuracies: timm's own evaluation,
      results/results-imagenet.csv @0173a13
and, for sam and gsam, from scripts that download them.
"""

import dataclasses
import fnmatch
import pathlib
import re
from collections.abc import Iterator

from vit_jax import config
from vit_jax.weights import download
from vit_jax.weights.readers import WeightsError

BUCKET = "gs://vit_models"
I21K, I1K = "ImageNet-21k", "ImageNet"
BOTH = f"{I21K}, {I1K}"
DATA = {"i21k": I21K, "i1k": I1K, "imagenet2012": I1K}  # as files say, as people do
REPORTS = {
    "imagenet21k": "vision_transformer",
    "imagenet21k+imagenet2012": "vision_transformer",
    "augreg": "vision_transformer",
    "bit": "big_transfer",
    "timm": "timm",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry(download.Source):
    """A published checkpoint.

    Attributes:
      layout: who wrote its files: google, bit, timm or huggingface.
      model: its variant.
      data: what it was trained on.
      image_size: side of its images; None where the source does not say, or for a ResNet.
      preprocessing: where it is not a plain bilinear resize to values of -1 to 1.
      top1: on ImageNet; of a model that has not seen ImageNet, once it is fine-tuned on it.
    """

    layout: str
    model: str
    data: str
    image_size: int | None = None
    preprocessing: str = ""
    top1: float | None = None

    @property
    def collection(self) -> str:
        """What its name begins with."""
        return self.name.partition("/")[0]

    @property
    def reported_by(self) -> str:
        """Who says how accurate it is; empty if nobody does."""
        return "" if self.top1 is None else REPORTS[self.collection]


# name, MiB, top-1 after fine-tuning at 384 pixels without dropout
IMAGENET21K = """
ViT-B_32       400.01   81.66
ViT-B_16       393.69   84.53
ViT-B_8        393.72   -
ViT-L_32       1260     81.89
ViT-L_16       1249     84.47
ViT-H_14       2519     -
R26+ViT-B_32   450.23   -
R50+ViT-B_16   439.85   83.72
R50+ViT-L_32   1341     -
"""
# name, pixels, MiB, top-1
IMAGENET2012 = """
ViT-B_32       384   336.89   -
ViT-B_16       384   331.4    -
ViT-B_16-224   224   330.29   81.2
ViT-B_8        384   334.78   -
ViT-L_32       384   1167     -
ViT-L_16       384   1167     -
ViT-L_16-224   224   1157     82.7
R50+ViT-B_16   384   377.57   -
"""
# name, augmentation, weight decay, dropout, stochastic depth, MiB; rate and top-1 of fine-tuning
AUGREG = """
ViT-Ti_16      none      0.03   0.0   0.0   37     0.03   78.22
ViT-S_32       none      0.1    0.0   0.0   118    0.01   79.58
ViT-S_16       light1    0.03   0.0   0.0   115    0.03   83.73
ViT-B_32       light1    0.1    0.0   0.0   398    0.01   83.59
ViT-B_16       medium1   0.1    0.0   0.0   391    0.03   85.49
ViT-L_16       strong1   0.1    0.0   0.0   1243   0.01   85.59
R+ViT-Ti_16    none      0.03   0.0   0.0   40     0.03   75.40
R26+ViT-S_32   light1    0.1    0.0   0.0   170    0.01   83.85
R50+ViT-L_32   medium1   0.1    0.1   0.1   1337   0.01   85.99
"""
SHARPNESS = """
sam/ViT-S_16
sam/ViT-B_32
sam/ViT-B_16
sam/ViT-L_32
sam/ViT-L_16
gsam/ViT-S_32
gsam/ViT-S_16
gsam/ViT-B_32
gsam/ViT-B_16
"""
# name, top-1 of BiT-M after fine-tuning
BIT = """
R50x1    80.68
R50x3    -
R101x1   -
R101x3   -
R152x2   85.15
R152x4   -
"""
# name, pixels, top-1
DISTILLED = """
R50x1_160      160   80.5
R50x1_224      224   82.8
R152x2_T_224   224   -
R152x2_T_384   384   -
"""
HUGGINGFACE = """
vit-base-patch32-224-in21k
vit-base-patch16-224-in21k
vit-large-patch32-224-in21k
vit-large-patch16-224-in21k
vit-huge-patch14-224-in21k
vit-base-patch32-384
vit-base-patch16-224
vit-base-patch16-384
vit-large-patch32-384
vit-large-patch16-224
vit-large-patch16-384
"""
# name, pixels if the name does not say, top-1
TIMM = """
vit_tiny_patch16_224.augreg_in21k             224   -
vit_small_patch32_224.augreg_in21k            224   -
vit_small_patch16_224.augreg_in21k            224   -
vit_base_patch32_224.augreg_in21k             224   -
vit_base_patch16_224.augreg_in21k             224   -
vit_base_patch8_224.augreg_in21k              224   -
vit_large_patch16_224.augreg_in21k            224   -
vit_tiny_r_s16_p8_224.augreg_in21k            224   -
vit_small_r26_s32_224.augreg_in21k            224   -
vit_large_r50_s32_224.augreg_in21k            224   -
vit_tiny_patch16_224.augreg_in21k_ft_in1k     224   75.454
vit_tiny_patch16_384.augreg_in21k_ft_in1k     384   78.424
vit_small_patch32_224.augreg_in21k_ft_in1k    224   75.994
vit_small_patch32_384.augreg_in21k_ft_in1k    384   80.486
vit_small_patch16_224.augreg_in21k_ft_in1k    224   81.384
vit_small_patch16_384.augreg_in21k_ft_in1k    384   83.802
vit_base_patch32_224.augreg_in21k_ft_in1k     224   80.716
vit_base_patch32_384.augreg_in21k_ft_in1k     384   83.350
vit_base_patch16_224.augreg_in21k_ft_in1k     224   84.532
vit_base_patch16_384.augreg_in21k_ft_in1k     384   85.996
vit_base_patch8_224.augreg_in21k_ft_in1k      224   85.798
vit_large_patch16_224.augreg_in21k_ft_in1k    224   85.834
vit_large_patch16_384.augreg_in21k_ft_in1k    384   87.084
vit_tiny_r_s16_p8_224.augreg_in21k_ft_in1k    224   71.798
vit_tiny_r_s16_p8_384.augreg_in21k_ft_in1k    384   75.962
vit_small_r26_s32_224.augreg_in21k_ft_in1k    224   81.864
vit_small_r26_s32_384.augreg_in21k_ft_in1k    384   84.048
vit_large_r50_s32_224.augreg_in21k_ft_in1k    224   84.422
vit_large_r50_s32_384.augreg_in21k_ft_in1k    384   86.182
vit_base_patch16_224.augreg2_in21k_ft_in1k    224   85.096
vit_base_patch8_224.augreg2_in21k_ft_in1k     224   86.218
vit_small_patch16_224.augreg_in1k             224   78.846
vit_small_patch16_384.augreg_in1k             384   81.116
vit_base_patch32_224.augreg_in1k              224   74.894
vit_base_patch32_384.augreg_in1k              384   78.752
vit_base_patch16_224.augreg_in1k              224   79.154
vit_base_patch16_384.augreg_in1k              384   81.102
vit_base_patch32_224.orig_in21k               224   -
vit_base_patch16_224.orig_in21k               224   -
vit_large_patch32_224.orig_in21k              224   -
vit_large_patch16_224.orig_in21k              224   -
vit_huge_patch14_224.orig_in21k               224   -
vit_base_r50_s16_224.orig_in21k               224   -
vit_base_patch16_224.orig_in21k_ft_in1k       224   81.786
vit_base_patch16_384.orig_in21k_ft_in1k       384   84.200
vit_large_patch32_384.orig_in21k_ft_in1k      384   81.510
vit_base_r50_s16_384.orig_in21k_ft_in1k       384   84.976
vit_base_patch32_224.sam_in1k                 224   73.694
vit_base_patch16_224.sam_in1k                 224   80.244
resnetv2_50x1_bit.goog_in21k                  224   -
resnetv2_50x3_bit.goog_in21k                  224   -
resnetv2_101x1_bit.goog_in21k                 224   -
resnetv2_101x3_bit.goog_in21k                 224   -
resnetv2_152x2_bit.goog_in21k                 224   -
resnetv2_152x4_bit.goog_in21k                 224   -
resnetv2_50x1_bit.goog_in21k_ft_in1k          448   80.340
resnetv2_50x3_bit.goog_in21k_ft_in1k          448   84.020
resnetv2_101x1_bit.goog_in21k_ft_in1k         448   82.342
resnetv2_101x3_bit.goog_in21k_ft_in1k         448   84.438
resnetv2_152x2_bit.goog_in21k_ft_in1k         448   84.510
resnetv2_152x4_bit.goog_in21k_ft_in1k         480   84.916
resnetv2_50x1_bit.goog_distilled_in1k         224   82.820
resnetv2_152x2_bit.goog_teacher_in21k_ft_in1k       224   82.876
resnetv2_152x2_bit.goog_teacher_in21k_ft_in1k_384   384   83.834
"""
HUB_SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}
# Any file of the 52,268 of How to train your ViT; the module `augreg` finds the best.
AUGREG_FILE = re.compile(
    r"((?:R\d*_)?(?:Ti|S|B|L)_\d+)-(i1k|i21k)[\w.]*-[\w.\-]+?"
    r"(?:--([a-z][\w.]*)-steps_\w+-lr_[\d.]+-res_(\d+))?",
    re.ASCII,
)


def entries(model: str | None = None) -> list[Entry]:
    """Returns what is published, in order.

    Args:
      model: only those whose variant this pattern matches, such as `ViT-B*`; there may be none.
    """
    everything = [*_google(), *_bit(), *_huggingface(), *_timm()]
    if model is None:
        return everything
    return [e for e in everything if fnmatch.fnmatchcase(e.model, model.replace("_", "/"))]


def find(name: str) -> Entry:
    """Returns the checkpoint of a name; raises WeightsError that tells the nearest one."""
    everything = {entry.name: entry for entry in entries()}
    if name in everything:
        return everything[name]
    file = name.removeprefix("augreg/").removesuffix(".npz")
    if name.startswith("augreg/") and (match := AUGREG_FILE.fullmatch(file)):
        short, data, tuned, side = match.groups()
        return Entry(
            name=name,
            urls=(_bucket(f"augreg/{file}"),),
            layout="google",
            model=variant(short),
            data=", ".join(DATA.get(one, one) for one in (data, tuned) if one),
            image_size=int(side or 224),
        )
    hint = config.suggest(name, list(everything))
    many = "; `vit_jax list --weights` shows all" if "did you mean" not in hint else hint
    raise WeightsError(f"{name}: no such run, file or folder, and no published checkpoint{many}")


def resolve(reference: str, *, offline: bool = False) -> pathlib.Path:
    """Returns the file or folder that a path, a published name or an address stands for.

    What is not here is downloaded; raises WeightsError where that cannot be.
    """
    path = pathlib.Path(reference).expanduser()
    if path.exists():
        return path
    if "://" not in reference:
        return download.fetch(find(reference), offline=offline)
    page = re.fullmatch(rf"{download.HUB}/([\w.\-]+/[\w.\-]+?)/?", reference, re.ASCII)
    if page:
        urls = _hub(page[1], "config.json", "preprocessor_config.json")
        source = download.Source(name=page[1], urls=urls, optional=urls[1:2])
        return download.fetch(source, offline=offline)
    return download.fetch(reference, offline=offline)


def variant(name: str) -> str:
    """Returns the model that a published name means: `R50_L_32` and `R50+L/32` are R50+ViT-L/32."""
    parts = re.fullmatch(r"(?:(R\d*)[_+])?(?:ViT-)?([A-Za-z]+)[_/](\d+)", name, re.ASCII)
    if parts is None:
        return name
    return f"{parts[1]}+" * bool(parts[1]) + f"ViT-{parts[2]}/{parts[3]}"


def _table(text: str) -> Iterator[list[str]]:
    yield from (line.split() for line in text.split("\n") if line)


def _number(text: str) -> float | None:
    return None if text == "-" else float(text)


def _bucket(path: str, bucket: str = BUCKET) -> str:
    return download.address(f"{bucket}/{path}.npz")


def _hub(name: str, *beside: str) -> tuple[str, ...]:
    folder = f"{download.HUB}/{name}/resolve/main"
    return (*(f"{folder}/{file}" for file in beside), f"{folder}/model.safetensors")


def _google() -> Iterator[Entry]:
    for name, mib, top1 in _table(IMAGENET21K):
        yield Entry(
            name=f"imagenet21k/{name}",
            urls=(_bucket(f"imagenet21k/{name}"),),
            layout="google",
            model=variant(name),
            data=I21K,
            image_size=224,
            mib=float(mib),
            top1=_number(top1),
        )
    for name, side, mib, top1 in _table(IMAGENET2012):
        yield Entry(
            name=f"imagenet21k+imagenet2012/{name}",
            urls=(_bucket(f"imagenet21k+imagenet2012/{name}"),),
            layout="google",
            model=variant(name.removesuffix("-224")),
            data=BOTH,
            image_size=int(side),
            mib=float(mib),
            top1=_number(top1),
        )
    for name, augmentation, decay, dropout, depth, mib, rate, top1 in _table(AUGREG):
        file = (
            f"{name.replace('ViT-', '').replace('+', '_')}-i21k-300ep-lr_0.001-aug_{augmentation}"
            f"-wd_{decay}-do_{dropout}-sd_{depth}"
        )
        tuned = f"{file}--imagenet2012-steps_20k-lr_{rate}-res_384"
        first = Entry(
            name=f"augreg/{name}",
            urls=(_bucket(f"augreg/{file}"),),
            layout="google",
            model=variant(name),
            data=I21K,
            image_size=224,
            mib=float(mib),
            top1=float(top1),
        )
        yield first
        yield dataclasses.replace(
            first,
            name=f"augreg/{name}-imagenet",
            urls=(_bucket(f"augreg/{tuned}"),),
            data=BOTH,
            image_size=384,
            mib=None,
        )
    for (name,) in _table(SHARPNESS):
        yield Entry(
            name=name,
            urls=(_bucket(name),),
            layout="google",
            model=variant(name.partition("/")[2]),
            data=I1K,
        )


def _bit() -> Iterator[Entry]:
    for name, top1 in _table(BIT):
        for kind, data in (("S", I1K), ("M", I21K), ("M", BOTH)):
            file = f"BiT-{kind}-{name}" + "-ILSVRC2012" * (data == BOTH)
            yield Entry(
                name=f"bit/{file}",
                urls=(_bucket(file, "gs://bit_models"),),
                layout="bit",
                model=name,
                data=data,
                top1=_number(top1) if data == I21K else None,
            )
    for name, side, top1 in _table(DISTILLED):
        yield Entry(
            name=f"bit/distill/{name}",
            urls=(_bucket(f"distill/{name}", "gs://bit_models"),),
            layout="bit",
            model=name.partition("_")[0],
            data=I1K if top1 != "-" else BOTH,
            image_size=int(side),
            top1=_number(top1),
        )


def _huggingface() -> Iterator[Entry]:
    for (name,) in _table(HUGGINGFACE):
        _, size, patch, side, *rest = name.split("-")
        yield Entry(
            name=f"google/{name}",
            urls=_hub(f"google/{name}", "config.json", "preprocessor_config.json"),
            layout="huggingface",
            model=f"ViT-{HUB_SIZES[size]}/{patch.removeprefix('patch')}",
            data=I21K if rest else BOTH,
            image_size=int(side),
        )


def _timm() -> Iterator[Entry]:
    for name, side, top1 in _table(TIMM):
        model, _, tag = name.partition(".")
        yield Entry(
            name=f"timm/{name}",
            urls=_hub(f"timm/{name}", "config.json"),
            layout="timm",
            model=_timm_model(model),
            data=(BOTH if "_ft_" in tag else I21K) if "in21k" in tag else I1K,
            image_size=int(side),
            preprocessing=_timm_preprocessing(name, int(side)),
            top1=_number(top1),
        )


def _timm_model(name: str) -> str:
    """Returns the variant of vit_base_patch16_224, vit_base_r50_s16_224 or resnetv2_50x1_bit."""
    kind, size, *parts = name.split("_")
    if kind == "resnetv2":
        return f"R{size}"
    if parts[0].startswith("patch"):
        return f"ViT-{HUB_SIZES[size]}/{parts[0].removeprefix('patch')}"
    return f"{parts[0].upper()}+ViT-{HUB_SIZES[size]}/{parts[1].removeprefix('s')}"


def _timm_preprocessing(name: str, side: int) -> str:
    """Returns how timm prepares images: it crops less of larger ones."""
    if not name.startswith("resnetv2"):
        return f"bicubic, center {0.9 if side == 224 else 1:g}"
    soft = "goog_distilled" in name or "teacher" in name
    return f"{'bicubic' if soft else 'bilinear'}, center {0.875 if side == 224 else 1:g}"
