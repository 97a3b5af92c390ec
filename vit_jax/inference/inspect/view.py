"""An interactive page with the attention of every patch, head and layer."""

import base64
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import string
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import __version__, config, models
from vit_jax.config import checks
from vit_jax.data import decoding
from vit_jax.inference import loaded_model, loading, prediction
from vit_jax.inference.inspect import figures, inputs, measures, saliency
from vit_jax.inference.inspect.measures import CannotAnswer
from vit_jax.models import variants
from vit_jax.models.variants import required
from vit_jax.pages import html
from vit_jax.pages.markup import text
from vit_jax.runtime import logs
from vit_jax.training import losses, normalization
from vit_jax.utils import messages, storage

COUNT = 8  # default number of images in a page
LIMIT = 64_000_000  # bytes of them
TOP = 5
HERE = pathlib.Path(__file__).parent

Picture = tuple[str, bytes | np.ndarray, str | None]  # name, encoded or pixels, true class
Fields = dict[str, Any]  # for JSON


@dataclasses.dataclass
class Viewer:
    """Computes predictions, attention and features; raises CannotAnswer without attention.

    Attributes:
      opened: the model.
      palette: the colors of patches; None until an image has been seen.
    """

    opened: loaded_model.LoadedModel
    palette: measures.Palette | None = None

    def __post_init__(self) -> None:
        measures.require_attention(self.opened)
        measures.require_features(self.opened)

    def show(self, picture: Picture) -> Fields:
        """Data of an image for the page; raises BadImage."""
        fields, features = self.examine(picture)
        return fields | self.colors(features)

    def colors(self, features: np.ndarray) -> Fields:
        """Colors of an image's patches, from features (P, D)."""
        if self.palette is None:
            self.palette = measures.create_palette(features)
        return {"colors": _packed(255 * self.palette.colors(features))}

    def examine(self, picture: Picture) -> tuple[Fields, np.ndarray]:
        """Data of an image without colors, and its features (P, D)."""
        name, encoded, truth = picture
        cfg = self.opened.config
        view, photo = inputs.see(encoded, cfg.data)
        # The photo is larger by a whole factor: without the pixels that fill no whole patch.
        height, width = (len(photo) // len(view) * side for side in self._side)
        temperature = self.opened.temperature or 1.0
        found = _compute_view(
            *(self._model, cfg.data, cfg.loss, self._shown),
            *(temperature, self.opened.params, view[None]),
        )
        (chances,), (labels,), weights, tokens = map(np.asarray, found)
        loaded_model.check_finite(weights, tokens)
        features = tokens[0, variants.prefix_tokens(cfg.model) :]
        rolled = measures.rollout_layers(weights)[:, 0]
        fields = {
            "name": messages.printable(name),
            "picture": _png(photo[:height, :width]),
            "top": [
                (messages.printable(self.opened.names[label]), round(float(chance), 6))
                for chance, label in zip(chances, labels, strict=True)
            ],
            "attention": pack_attention(weights[:, 0], rolled),
            "features": _packed(32767 * measures.unit_rows(features), "<i2"),
        }
        each = saliency.class_maps(self.opened, view, labels.tolist() if self._mapped else [])
        if each and saliency.GRADIENT_ROLLOUT in each[0]:
            fields["maps"] = _packed(255 * np.stack([_shares(one) for one in each]))
        return fields | ({} if truth is None else {"truth": messages.printable(truth)}), features

    @functools.cached_property
    def facts(self) -> Fields:
        """The data of the model for the page."""
        model, data = self.opened.config.model, self.opened.config.data
        rows, columns = variants.grid(model, data.image_size)
        facts: Fields = {
            "layers": required(model.depth),
            "heads": required(model.heads),
            "rows": rows,
            "columns": columns,
            "token": variants.has_class_token(model),
            "before": variants.prefix_tokens(model),
            "single": variants.reads_one_token(model),
            "side": self._side,
            "width": required(model.width),
        }
        try:
            tables = measures.position_tables(self.opened)
        except CannotAnswer:
            return facts  # the page leaves them out
        cosines = measures.position_similarity(tables[0])
        return facts | {
            "positions": _packed(127 * (cosines + 1)),
            "cosineRange": figures.cosine_range(cosines[None]),
            "positionTables": len(tables),
        }

    @property
    def _side(self) -> tuple[int, int]:
        """The height and width covered by patches."""
        return variants.covered(self.opened.config.model, self.opened.config.data.image_size)

    @functools.cached_property
    def _mapped(self) -> bool:
        model = self.opened.config.model
        return models.find_architecture(model).lacks(model, "saliency") is None

    @functools.cached_property
    def _model(self) -> models.Classifier:
        return measures.explicit_model(self.opened.config)

    @property
    def _shown(self) -> int:
        """How many of the most probable classes are shown; none without a head, or of numbers."""
        if "head/kernel" in self.opened.fresh or self.opened.config.loss.meaning == "mse":
            return 0
        return min(TOP, len(self.opened.classes))


def _shares(maps: Mapping[str, np.ndarray]) -> np.ndarray:
    """Gradient rollout and Grad-CAM, each from 0 to 1 at its maximum, (2, P)."""
    both = np.stack([maps[kind].ravel() for kind in (saliency.GRADIENT_ROLLOUT, saliency.GRAD_CAM)])
    most = np.maximum(both.max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return np.clip(both / most, 0.0, 1.0)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _compute_view(
    model: models.Classifier,
    data: config.Data,
    loss: config.Loss,
    count: int,
    temperature: jax.typing.ArrayLike,
    params: models.Params,
    view: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """What a page shows of a view.

    The highest probabilities and their classes, (1, count) each, attention weights
    (L, 1, H, N, N) and tokens (1, N, D).
    """
    logits, out = model.apply(
        params, normalization.normalize_pixels(jnp.asarray(view), data), capture=True
    )
    tokens = out["tokens"].astype(jnp.float32)
    best, labels = losses.most_probable(logits / temperature, loss, count)
    return best, labels, out["attention"], tokens


def open_viewer(
    checkpoint: str,
    overrides: Mapping[str, str],
    *,
    step: int | str | None = None,
    images: Sequence[str | os.PathLike[str]] = (),
    count: int | None = None,
    seed: int = 0,
    needed: bool = True,
) -> tuple[Viewer, Iterable[Picture]]:
    """A viewer and initial images from files and folders, else from a run's split.

    If there are more than `count` images, `seed` selects among them. Raises CannotAnswer without
    images if they are `needed`.
    """
    files = prediction.list_files(images, count or COUNT, seed)
    if files:
        loading.check_given(overrides)
    opened = loading.load(checkpoint, overrides, step=step)
    checks.check_fixed(opened.config, "inspect")
    viewer = Viewer(opened)
    if files:
        return viewer, prediction.read_files(files)
    if loading.has_images(checkpoint, overrides):
        return viewer, prediction.read_examples(opened, count or COUNT, seed)
    if needed:
        raise CannotAnswer("inspect view: needs images: name files or folders")
    return viewer, ()


def page(viewer: Viewer, pictures: Iterable[Picture], *, live: bool = False) -> str:
    """The page as one self-contained HTML document.

    Includes images up to a size of LIMIT, the first one always, and logs how many it omits. With
    `live`, the page can send images to its server. Raises BadImage.
    """
    shown, features, size, left_out = [], [], 0, 0
    for picture in pictures:
        if size > LIMIT:
            # Only counted, for the log; nothing more is computed.
            left_out += 1
            continue
        try:
            one, found = viewer.examine(picture)
        except decoding.BadImage as error:
            raise config.ConfigError(f"{picture[0]}: {error}") from error
        size += sum(len(one[key]) for key in ("attention", "picture", "features"))
        if shown and size > LIMIT:
            left_out += 1
        else:
            shown.append(one)
            features.append(found)
    if left_out:
        logs.log.info(
            "%d images left out: a page contains at most %d MB", left_out, round(LIMIT / 1e6)
        )
    if features:
        viewer.palette = measures.create_palette(np.stack(features))
        shown = [one | viewer.colors(own) for one, own in zip(shown, features, strict=True)]
    facts = viewer.facts | {"live": live, "leftOut": left_out, "images": shown}
    cfg = viewer.opened.config
    title = f"{cfg.name}: where it looks"
    body = string.Template(_file("view.html")).substitute(
        name=text(cfg.name),
        lead=text(_lead(cfg, viewer.opened.step)),
        by=text(f"vit_jax {__version__}"),
        # Escape names, so that none can close its HTML element.
        data=json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c"),
        script=_file("view.js"),
    )
    style = html.STYLE.read_text(encoding="utf-8") + _file("view.css")
    return html.PAGE.substitute(policy=policy(), title=text(title), style=style, body=body)


def pack_attention(weights: np.ndarray, rolled: np.ndarray) -> str:
    """Weights (L, H, N, N) and their rollout (L, N, N) as base64 of deflated bytes.

    The rollout follows the heads as an additional head. The data are the maxima of all rows,
    float32 (L, H + 1, N), then the rows, uint8 (L, H + 1, N, N): a weight w becomes
    255 sqrt(w / maximum), rounded, which preserves small weights. Decoded weights are within 1/250
    of the maximum.
    """
    heads = np.concatenate([weights, rolled[:, None]], axis=1)
    maxima = heads.max(axis=-1)
    share = heads / np.maximum(maxima, np.finfo(np.float32).tiny)[..., None]
    rows = np.rint(255 * np.sqrt(share)).astype(np.uint8)
    return _deflated(maxima.astype("<f4").tobytes() + rows.tobytes())


def _packed(values: np.ndarray, dtype: str = "u1") -> str:
    """Numbers, rounded to integers, as base64 of deflated bytes."""
    return _deflated(np.rint(values).astype(dtype).tobytes())


def _deflated(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 6)).decode()


def policy() -> str:
    """Content-Security-Policy of the page: its own script, and nothing from outside."""
    # Everything between the tags of view.html counts, the newline before the script as well.
    script = hashlib.sha256(f"\n{_file('view.js')}".encode()).digest()
    return (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{base64.b64encode(script).decode()}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'"
    )


def write_page(text: str, output: pathlib.Path | None) -> pathlib.Path:
    """Writes a page to a file, or as view.html to a folder; raises ConfigError."""
    output = output or pathlib.Path()
    if output.suffix.lower() not in (".html", ".htm"):
        output = output / "view.html"
    with storage.writing("--output", output):
        output.parent.mkdir(parents=True, exist_ok=True)
        storage.write_atomically(output, text)
    return output


def _lead(cfg: config.Config, step_number: int | None) -> str:
    model = cfg.model
    rows, columns = variants.grid(model, cfg.data.image_size)
    height, width = variants.covered(model, cfg.data.image_size)
    name = f"{model.variant}, " if model.variant else ""
    at = "" if step_number is None else f", step {step_number:,}"
    return (
        f"{name}{required(model.depth)} layers of {required(model.heads)} heads, "
        f"{rows} \u00d7 {columns} patches of {height // rows} \u00d7 {width // columns} pixels{at}"
    )


def _file(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _png(view: np.ndarray) -> str:
    encoded = decoding.encode(decoding.for_display(view))
    return f"data:image/png;base64,{base64.b64encode(encoded).decode()}"
