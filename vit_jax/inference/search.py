"""Search by example: the images of a table of features, or of a folder, most like another one."""

import dataclasses
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from vit_jax import config
from vit_jax.data import bucket, decoding
from vit_jax.data.prepare import parquet_headers
from vit_jax.inference import embedding, loaded_model, loading
from vit_jax.pages import html
from vit_jax.pages.document import Document, Gallery, PageSection, Paragraph, Picture
from vit_jax.runtime import logs
from vit_jax.utils import limits, messages, storage
from vit_jax.weights import WeightsError, readers

ROWS = 2**16  # of a table that are compared at a time
SIDE = 192  # of a picture on the page
NAMES = pa.dictionary(pa.int32(), pa.string())
DIGESTS = ("weights", "views", "model")  # of a table, in the order of FeatureIndex
SHRINK = 64  # how many times smaller than its values a table in Parquet may be


class SimilarImage(NamedTuple):
    """An image of the index, and the cosine of its features with the query's."""

    image: str
    similarity: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureIndex:
    """Features of images: unit rows (N, D) float32, or NaN for an image that was not readable.

    `weights` is the digest of the parameters that gave them, `views` that of the options by which
    images were resized, `model` that of the function; empty where it is not known.
    """

    names: tuple[str, ...]
    features: np.ndarray
    weights: str = ""
    views: str = ""
    model: str = ""

    @classmethod
    def from_features(
        cls, names: Iterable[object], features: np.ndarray, *digests: str
    ) -> "FeatureIndex":
        """Divides rows by their length; a row of zeros is like nothing."""
        own, rows = tuple(map(str, names)), _unit(features)
        return cls(names=own, features=rows, **dict(zip(DIGESTS, digests, strict=False)))

    def nearest(self, query: np.ndarray, top: int) -> list[SimilarImage]:
        """The `top` images of the largest cosine with features (D,); of equals the earlier."""
        query = _unit(query[None])[0]
        parts = range(0, len(self.names), ROWS)
        cosines = np.concatenate([self.features[first : first + ROWS] @ query for first in parts])
        order = np.argsort(-cosines, kind="stable")[:top]  # NaN last
        return [
            SimilarImage(self.names[i], float(cosines[i]))
            for i in order
            if not np.isnan(cosines[i])
        ]


def _unit(features: np.ndarray) -> np.ndarray:
    """Rows (N, D) of length 1; NaN for a row of zeros."""
    # Squares of float32 may be too small or too large for float32.
    squares = np.einsum("nd,nd->n", features, features, dtype=np.float64)
    unit = np.empty_like(features)
    with np.errstate(invalid="ignore"):
        # The quotient is float64, and `out` float32.
        np.divide(features, np.sqrt(squares)[:, None], out=unit, casting="same_kind")
    return unit


def read_index(path: pathlib.Path) -> FeatureIndex:
    """Reads a table that `embed` wrote; raises ConfigError for another file."""
    where = f"--index={path}"
    if not path.is_file():
        raise config.ConfigError(f"{where}: no such file or folder")
    try:
        if path.suffix.lower() == ".parquet":
            names, features, digests = _read_parquet(path)
        else:
            with zipfile.ZipFile(path) as archive:  # `embed` compresses nothing
                if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                    raise config.ConfigError(f"{where}: is compressed; write it with vit_jax embed")
            arrays = readers.open_arrays(path, ".npz")  # as large as the file at most
            names, features = arrays.read("names"), arrays.read("features")
            if names.ndim != 1:
                raise ValueError(names.shape)
            digests = [str(arrays.read(name)) if name in arrays.specs else "" for name in DIGESTS]
    except OSError as error:
        raise config.ConfigError(f"{where}: {storage.reason(error)}") from error
    except (
        ValueError, KeyError, zipfile.BadZipFile, NotImplementedError, EOFError, pa.ArrowException,
        WeightsError,
    ) as error:  # fmt: skip
        raise config.ConfigError(f"{where}: is not a table that vit_jax embed wrote") from error
    if not len(names):
        raise config.ConfigError(f"{where}: has no images")
    if features.ndim != 2 or len(features) != len(names) or features.dtype != np.float32:
        raise config.ConfigError(
            f"{where}: must have one row of features for each image; embed with pre_logits"
        )
    if np.isnan(features).any(axis=1).all():
        raise config.ConfigError(f"{where}: has features of no image; none of them could be read")
    return FeatureIndex.from_features(names, features, *digests)


def _read_parquet(path: pathlib.Path) -> tuple[list[str], np.ndarray, list[str]]:
    """Names, features (N, D) and the DIGESTS.

    Raises ValueError for columns of other types or far too large.
    """
    # Names as a dictionary: stored once, a long name could be that of every row.
    mapped = pa.memory_map(str(path))
    with mapped, pyarrow.parquet.ParquetFile(mapped, read_dictionary=["name"]) as file:
        kinds = {field.name: field.type for field in file.schema_arrow}
        kind = kinds["features"]
        # Every list has the same size, so the flat values are a matrix.
        if not pa.types.is_fixed_size_list(kind) or kinds["name"] != NAMES:
            raise ValueError(kinds)
        # Features hardly shrink; what shrinks more was made to fill the memory.
        most = SHRINK * mapped.size()
        parquet_headers.largest_column(file, mapped, path, ("name", "features"))
        if 4 * file.metadata.num_rows * kind.list_size > most:
            raise ValueError(most)
        table = file.read(columns=["name", "features"])
    # A name that the dictionary holds once becomes a text of its own in every row.
    held = 0
    for part in table["name"].chunks:
        sizes = np.array([len(name) for name in part.dictionary.to_pylist()], np.int64)
        held += int(sizes[part.indices.to_numpy()].sum()) if len(part) else 0
    if held > most:
        raise ValueError(most)
    names, rows = table["name"].to_pylist(), table["features"].combine_chunks()
    facts = limits.load_json((table.schema.metadata or {}).get(b"vit_jax", b"{}"))
    facts = facts if isinstance(facts, dict) else {}
    digests = [str(facts.get(name, "")) for name in DIGESTS]
    return names, rows.flatten().to_numpy().reshape(len(names), kind.list_size), digests


def search(
    reference: str | os.PathLike[str],
    index: str | os.PathLike[str],
    query: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    *,
    step: int | str | None = None,
    top: int = 9,
    images: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
) -> list[SimilarImage]:
    """The `top` images most like `query`, by the cosine of their features, best first.

    Args:
      reference: a checkpoint, as in `load`; that of the table.
      index: a table that `embed` wrote, or a folder of images; on a disk or in a bucket.
      query: an image file, likewise.
      overrides: options, as in `load`.
      step: as in `load`.
      top: how many.
      images: the folder that the names of a table are below, for the pictures of `output`.
      output: an HTML page to write.

    Raises a UserError.
    """
    config.check_count("--top", top)
    loading.check_given(overrides)
    source = bucket.given_path("--index", index)
    photo = bucket.given_path("--query", query)
    page = storage.given_page("--output", output)
    if not source.exists():
        raise config.ConfigError(f"--index={source}: no such file or folder")
    if images is not None and (page is None or source.is_dir()):
        raise config.ConfigError(
            f"--images={images}: finds the pictures of a table, for --output; leave it out"
        )
    folder = source if source.is_dir() else None
    if folder is None and images is not None:
        folder = bucket.given_path("--images", images)
        if not folder.is_dir():
            raise config.ConfigError(f"--images={images}: no such folder")
    if page is not None and folder is None:
        raise config.ConfigError(
            f"--output={page}: shows pictures; name their folder with --images=FOLDER"
        )
    try:
        # Query and table are read before the model, which takes longest.
        encoded = decoding.read_file(photo)
    except (OSError, decoding.BadImage) as error:
        reason = getattr(error, "strerror", None) or error
        raise config.ConfigError(f"--query={bucket.shown(photo)}: {reason}") from error
    written = None if source.is_dir() else read_index(source)
    opened = loading.load(reference, overrides, step)
    if (table := written) is None:
        with tempfile.TemporaryDirectory() as made:
            embedding.write_features(
                opened, pathlib.Path(made) / "features.npz", source, key="--index"
            )
            table = read_index(pathlib.Path(made) / "features.npz")
    try:
        features = opened.embed(encoded)[0]
    except decoding.BadImage as error:
        reason = str(error).removeprefix("images: ")
        raise config.ConfigError(f"--query={bucket.shown(photo)}: {reason}") from None
    if len(features) != table.features.shape[1]:
        raise config.ConfigError(
            f"--index={source}: has {table.features.shape[1]} features of an image, and "
            f"{reference} gives {len(features)}; search with the checkpoint that it was written by"
        )
    # A table may lack these digests; it is then taken as it is.
    if written and written.weights and written.weights != embedding.digest_weights(opened):
        raise config.ConfigError(
            f"--index={source}: has features of other weights than {reference}; search with the "
            "checkpoint that it was written by"
        )
    if written and written.views and written.views != embedding.digest_views(opened.config.data):
        raise config.ConfigError(
            f"--index={source}: has features of images that were resized, cropped or normalized "
            "otherwise; search with the options of data that it was embedded with"
        )
    if written and written.model and written.model != embedding.digest_model(opened.config.model):
        raise config.ConfigError(
            f"--index={source}: has features of a model with other options, such as model.gelu; "
            "search with those that it was embedded with"
        )
    found = table.nearest(features, top)
    if page is not None and folder is not None:
        with storage.writing("--output", page):
            storage.write_atomically(page, html.page(create_document(opened, photo, folder, found)))
    return found


def create_document(
    opened: loaded_model.LoadedModel,
    query: pathlib.Path,
    folder: pathlib.Path,
    found: list[SimilarImage],
) -> Document:
    """The query and the images found for it, with pictures."""
    pictures: list[Picture] = []
    blocks: list[Gallery | Paragraph] = [Gallery(samples=pictures)]
    for place, one in [(query, None), *((folder / match.image, match) for match in found)]:
        caption = "The query" if one is None else f"{one.image}, {one.similarity:.3f}"
        named = pathlib.PurePath("" if one is None else one.image)
        try:
            below = not named.is_absolute() or named.is_relative_to(folder.absolute())
            if not below or ".." in named.parts:  # a foreign table could name any file
                raise decoding.BadImage(f"is not below {folder}")
            png = decoding.thumbnail(decoding.read_file(place), SIDE, opened.config.data)
        except (OSError, decoding.BadImage) as error:
            reason = getattr(error, "strerror", None) or error
            blocks.append(Paragraph(text=f"{caption}: no picture ({reason})", note=True))
            continue
        pictures.append(Picture(png=png, path=bucket.shown(place), caption=caption))
    if found and len(pictures) == 1:
        logs.log.warning(
            "%s: has none of the images found, such as %s; --images is the folder that was "
            "embedded",
            bucket.shown(folder), messages.printable(found[0].image),
        )  # fmt: skip
    section = PageSection(title="Most alike", blocks=blocks)
    lead = f"The images most like {query.name}, by the cosine of features of {opened.config.name}."
    return Document(title=f"Search: {query.name}", lead=lead, sections=[section])
