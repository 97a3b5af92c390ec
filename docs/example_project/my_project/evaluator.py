"""An evaluator: `--config.evaluation.evaluators=worst_class`."""

import jax
import jax.numpy as jnp
import numpy as np

import vit_jax
from vit_jax.training.normalization import normalize_pixels


@vit_jax.register("evaluator", "worst_class")
def worst_class(run, split: str | None = None):
    """Measures the accuracy of the class that is recognized worst."""
    images = run.runner(run.open_split(split or run.cfg.data.eval_split))

    @jax.jit
    def counts(params, batch):  # rows without an image have mask False
        logits, _ = run.model.apply(params, normalize_pixels(batch["image"], run.cfg.data))
        seen = batch["mask"], batch["mask"] & (logits.argmax(-1) == batch["label"])
        classes = jax.nn.one_hot(batch["label"], len(run.classes))
        return jnp.stack([classes.sum(0, where=rows[:, None]) for rows in seen])

    def evaluate(params, *, stop):
        """Named numbers, or None where the run was stopped meanwhile."""
        found = images.outputs(lambda batch: counts(params, batch), stop=stop)
        if found is None:
            return None
        seen, correct = np.sum(jax.device_get(found), axis=0)
        return {"top1": float(np.min(correct[seen > 0] / seen[seen > 0]))}

    return evaluate
