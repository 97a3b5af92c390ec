"""The datasets of the tasks: TFDS names, image counts and origins.

Sizes are TFDS's. `images` has the splits of official archives and those that a task slices by
percentage or from the end; it may lack others. References: the paper,
google-research/task_adaptation at d7630d3 (versions, sizes), the builders of tensorflow_datasets
4.9.10 (the rest).
"""

import dataclasses
from collections.abc import Mapping

DOWNLOADED, MANUAL, PACKED = "downloaded", "manual", "packed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset as a folder below TFDS's data_dir."""

    tfds: str  # its TFDS name, `name` or `name/config`
    classes: int  # number of classes of its own label; 0: no label
    version: str = ""  # pattern of suitable versions, such as `3.*.*`; empty: any
    # Number of images by split, if known.
    images: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # `downloaded` by its builder; `manual`: from files that the user downloads; `packed`:
    # from the user's folder or tars, without a builder.
    obtained: str = DOWNLOADED
    files: str = ""  # the files and their origin; empty if downloaded
    # Extra packages needed to prepare it: `tensorflow` if TFDS's builder does it.
    packages: tuple[str, ...] = ()
    border: int = 0  # width in pixels of a border that is cropped when an image is read

    @property
    def name(self) -> str:
        """The value for `data.name`, including the version pattern if there is one."""
        return f"{self.tfds}:{self.version}" if self.version else self.tfds


VALIDATION_TAR = "ILSVRC2012_img_val.tar from image-net.org/download-images (registration)"
IMAGENET_TARS = f"ILSVRC2012_img_train.tar, {VALIDATION_TAR}"
CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur",
    "zoom_blur", "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate",
    "jpeg_compression", "gaussian_blur", "saturate", "spatter", "speckle_noise",
)  # fmt: skip
SEVERITIES = (1, 2, 3, 4, 5)

IMAGENET = Dataset(
    tfds="imagenet2012", classes=1000, images={"train": 1_281_167, "validation": 50_000},
    obtained=MANUAL, files=IMAGENET_TARS,
)  # fmt: skip
REAL = Dataset(  # labels only; IMAGENET has the images
    tfds="imagenet2012_real", classes=1000, images={"validation": 50_000}, obtained=MANUAL,
    files="real.json from github.com/google-research/reassessed-imagenet",
)  # fmt: skip
IMAGENET21K = Dataset(  # 14.2 million images (BiT, section 3.1); the units: the fall 2011 release
    tfds="imagenet21k", classes=21_843, images={"full": 14_197_122}, obtained=PACKED,
    files="fall11_whole.tar or winter21_whole.tar.gz (a tar for each class) from image-net.org",
)  # fmt: skip
JFT = Dataset(  # classes: BiT, section 3.1; name and splits are ours
    tfds="jft_300m", classes=18_291, images={"train": 303_000_000}, obtained=PACKED,
    files="private: a folder of images of yours stands in for it, train/CLASS and validation/CLASS",
)  # fmt: skip
CIFAR10 = Dataset(
    tfds="cifar10", version="3.*.*", classes=10, images={"train": 50_000, "test": 10_000}
)
CIFAR100 = Dataset(
    tfds="cifar100", version="3.*.*", classes=100, images={"train": 50_000, "test": 10_000}
)
PETS = Dataset(  # task_adaptation uses 3.*.*, which TFDS has removed; 4.0.0 repairs damaged images
    tfds="oxford_iiit_pet", version="4.*.*", classes=37, images={"train": 3_680, "test": 3_669}
)
FLOWERS = Dataset(
    tfds="oxford_flowers102", version="2.*.*", classes=102,
    images={"train": 1_020, "validation": 1_020, "test": 6_149},
)  # fmt: skip
CALTECH101 = Dataset(
    tfds="caltech101", version="3.*.*", classes=102, images={"train": 3_060, "test": 6_084}
)
DTD = Dataset(
    tfds="dtd", version="3.*.*", classes=47,
    images={"train": 1_880, "validation": 1_880, "test": 1_880},
)  # fmt: skip
SUN397 = Dataset(
    tfds="sun397/tfds", version="4.*.*", classes=397,
    images={"train": 76_128, "validation": 10_875, "test": 21_750},
)  # fmt: skip
SVHN = Dataset(
    tfds="svhn_cropped", version="3.*.*", classes=10, images={"train": 73_257, "test": 26_032}
)
CAMELYON = Dataset(
    tfds="patch_camelyon", version="2.*.*", classes=2,
    images={"train": 262_144, "validation": 32_768, "test": 32_768}, packages=("h5py",),
)  # fmt: skip
EUROSAT = Dataset(tfds="eurosat/rgb", version="2.*.*", classes=10, images={"train": 27_000})
RESISC45 = Dataset(
    tfds="resisc45", version="3.*.*", classes=45, images={"train": 31_500}, obtained=MANUAL,
    files="NWPU-RESISC45.rar, unpacked, from 1drv.ms/u/s!AmgKYzARBl5ca3HNaHIlzp_IXjs",
)  # fmt: skip
RETINOPATHY = Dataset(
    tfds="diabetic_retinopathy_detection/btgraham-300",
    version="3.*.*",
    classes=5,
    images={"train": 35_126, "validation": 10_906, "test": 42_670},
    obtained=MANUAL,
    files="train.zip and test.zip, unpacked to train and test, and trainLabels.csv from "
    "kaggle.com/c/diabetic-retinopathy-detection, retinopathy_solution.csv from its forum",
)
CLEVR = Dataset(  # its test split has no labels
    tfds="clevr", version="3.*.*", classes=0, images={"train": 70_000, "validation": 15_000}
)
DMLAB = Dataset(
    tfds="dmlab", version="2.0.1", classes=6,
    images={"train": 65_550, "validation": 22_628, "test": 22_735},
)  # fmt: skip
DSPRITES = Dataset(  # TFDS's download needs h5py, the authors' .npz does not
    tfds="dsprites", version="2.*.*", classes=0, images={"train": 737_280}
)
KITTI = Dataset(  # task_adaptation uses 3.1.0; later versions update the devkit and name `occluded`
    tfds="kitti", version="3.*.*", classes=0,
    images={"train": 6_347, "validation": 423, "test": 711},
)  # fmt: skip
SMALLNORB = Dataset(
    tfds="smallnorb", version="2.*.*", classes=5, images={"train": 24_300, "test": 24_300}
)
# It shares 113 classes with ImageNet (BiT, section 3.6). A red border marks its images against
# accidental training; its authors' loader crops them to (2, 2, width - 2, height - 2).
OBJECTNET = Dataset(
    tfds="objectnet", classes=313, obtained=PACKED,
    files="objectnet-1.0.zip from objectnet.dev, unpacked: it has images/CLASS and mappings",
    border=2,
)  # fmt: skip
IMAGENET_V2 = Dataset(tfds="imagenet_v2/matched-frequency", classes=1000, images={"test": 10_000})
IMAGENET_A = Dataset(tfds="imagenet_a", classes=1000, images={"test": 7_500})
IMAGENET_R = Dataset(tfds="imagenet_r", classes=1000, images={"test": 30_000})
IMAGENET_SKETCH = Dataset(tfds="imagenet_sketch", classes=1000, images={"test": 50_889})
IMAGENET_C = {
    f"{corruption}_{severity}": Dataset(
        tfds=f"imagenet2012_corrupted/{corruption}_{severity}",
        classes=1000,
        images={"validation": 50_000},
        obtained=MANUAL,
        files=IMAGENET_TARS,
        packages=("tensorflow", "scipy", "scikit-image"),
    )
    for corruption in CORRUPTIONS
    for severity in SEVERITIES
}
CARS = Dataset(tfds="cars196", version="2.1.0", classes=196, images={"train": 8_144, "test": 8_041})
UC_MERCED = Dataset(tfds="uc_merced", classes=21, images={"train": 2_100})
