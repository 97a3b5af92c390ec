"""Evaluation and features of image files, against the forward pass alone on the same batches."""

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence

import jax

from vit_jax import config, models
from vit_jax.benchmarks import sample_images, turns
from vit_jax.evaluation.evaluation import open_evaluation
from vit_jax.inference import embedding, loaded_model
from vit_jax.training import normalization, run_config

CLASSES = 1000
SPLIT, FOLDERS = "test", ("even", "odd")
ROUNDS = 5
ALONE = "the forward pass alone"


def arrange(data: pathlib.Path | None, folder: pathlib.Path) -> pathlib.Path:
    """A folder of images in class folders: links to those of `data`, or generated ones.

    Raises ConfigError if there are none.
    """
    top = folder / "images"
    for name in FOLDERS:
        (top / SPLIT / name).mkdir(parents=True)
    (folder / "files").mkdir()
    for number, file in enumerate(sample_images.gather(data, folder / "files")):
        name = f"{number:05}{file.suffix}"
        # Links: a dataset may be larger than the temporary folder.
        (top / SPLIT / FOLDERS[number % len(FOLDERS)] / name).symlink_to(file.resolve())
    return top


def create_config(name: str, size: int, batch: int, images: pathlib.Path) -> config.Config:
    """The config of a run whose evaluation split is the images; raises ConfigError."""
    return run_config.complete(
        config.Config(
            model=config.Model(variant=name, num_classes=CLASSES),
            data=config.Data(
                source="folder",
                root=str(images),
                image_size=(size, size),
                train_split=SPLIT,
                eval_split=SPLIT,
            ),
            evaluation=config.Evaluation(batch_size=batch),
        )
    )


class Programs:
    """Three passes over the same images with the same parameters.

    Attributes:
      images: how many there are.
      opened: the model; its head starts at zero.
    """

    def __init__(self, cfg: config.Config, folder: pathlib.Path) -> None:
        """Takes a config and a folder for features."""
        self._evaluation = open_evaluation(cfg)
        source = self._evaluation.source
        assert source is not None
        self.images = len(source)
        self._features = folder / "features.npz"
        self.opened = loaded_model.LoadedModel(
            config=self._evaluation.cfg,
            params=jax.jit(self._evaluation.model.init)(jax.random.key(0)),
            classes=self._evaluation.classes,
            kind="run",
        )
        split = self._evaluation.runner(source)
        # The batches as evaluation makes them, padding included, stay on the device.
        held = split.outputs(lambda batch: batch["image"], stop=lambda: False)
        assert held is not None
        self._held = held

    def evaluate(self) -> dict[str, float]:
        """The metrics that `vit_jax evaluate` prints of the split."""
        evaluator = self._evaluation.evaluators[self._evaluation.role.name]
        results = evaluator(self.opened.params, stop=lambda: False)
        assert results is not None
        return results

    def embed(self) -> pathlib.Path:
        """Writes the file of `vit_jax embed`."""
        self._features.unlink(missing_ok=True)
        batch = self.opened.config.evaluation.batch_size
        embedding.write_features(self.opened, self._features, batch_size=batch)
        return self._features

    def forward(self) -> list[jax.Array]:
        """The logits of every batch, which are on the device before."""
        model, data, params = self._evaluation.model, self.opened.config.data, self.opened.params
        return jax.block_until_ready([_logits(model, data, params, one) for one in self._held])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _logits(
    model: models.Classifier, data: config.Data, params: models.Params, images: jax.Array
) -> jax.Array:
    return model.apply(params, normalization.normalize_pixels(images, data))[0]


def measure(
    names: Sequence[str],
    sizes: Sequence[int],
    *,
    batch: int,
    data: pathlib.Path | None,
    rounds: int,
    say: Callable[[str], None],
) -> Iterator[list[turns.Compared]]:
    """Yields the comparisons of every model at every size; raises ConfigError."""
    for model in names:  # a mistake is reported before images are made
        for size in sizes:
            complete = models.complete(config.Model(variant=model, num_classes=CLASSES))
            models.check_model(complete, (size, size))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        images = arrange(data, folder)
        for cfg in [create_config(model, size, batch, images) for model in names for size in sizes]:
            what = f"{cfg.model.variant} at {cfg.data.image_size[0]}"
            say(what)
            yield _compare(Programs(cfg, folder), what, rounds)


def _compare(programs: Programs, what: str, rounds: int) -> list[turns.Compared]:
    ways = {"evaluate": programs.evaluate, "embed": programs.embed, ALONE: programs.forward}
    for way in ways.values():
        way()
    evaluated, embedded, alone = turns.take(ways, rounds=rounds)
    return [
        turns.Compared(
            work=f"{one.name} {what}",
            unit="images",
            amount=programs.images,
            results=[dataclasses.replace(one, name=turns.OURS), alone],
        )
        for one in (evaluated, embedded)
    ]


def title(batch: int) -> list[str]:
    """Lines about the measurement and its machine."""
    return [
        f"from JPEG files to metrics, and to a file of features, in batches of {batch}; the "
        "forward pass alone: from the same uint8 images on the device to logits",
        turns.machine(),
    ]
