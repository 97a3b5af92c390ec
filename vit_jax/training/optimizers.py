"""Update rules, without the learning rate: the step multiplies by it, as a function of the step."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from vit_jax import components, config, tree_utils

# Which parameters decay, by name; the first match decides.
DECAYED = {
    "kernels": ((r".*kernel", True), (r".*", False)),  # big_vision's rule
    "all": ((r".*", True),),  # flax.optim.Adam's, when the paper was written
}


def create(optimizer: config.Optimizer, *, clip_norm: float | None) -> optax.GradientTransformation:
    """Returns clip, moments and decoupled weight decay as one optax chain.

    Its updates are to be scaled by minus the learning rate, so weight decay is multiplied by it
    too (AdamW's form; AugReg, section 3.3).
    """
    rules = DECAYED[optimizer.decayed]
    dtype = jnp.dtype(optimizer.moment_dtype)

    def decays(params: Any) -> Any:
        return tree_utils.map_named(lambda name, _: tree_utils.first_match(name, rules), params)

    if optimizer.name == "adam":
        moments = optax.scale_by_adam(optimizer.b1, optimizer.b2, optimizer.eps, mu_dtype=dtype)
    elif optimizer.name != "sgd":
        moments = _named(optimizer.name)
    else:
        moments = optax.trace(optimizer.momentum, accumulator_dtype=dtype)
    parts = [moments]
    if clip_norm is not None:
        parts.insert(0, optax.clip_by_global_norm(clip_norm))
    if optimizer.weight_decay:
        parts.append(optax.add_decayed_weights(optimizer.weight_decay, mask=decays))
    chain = optax.chain(*parts)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        # optax mixes types on purpose (bfloat16 moments, float32 gradients), our tests forbid it.
        with jax.numpy_dtype_promotion("standard"):
            return chain.update(updates, state, params)

    return optax.GradientTransformation(chain.init, update)


# Direction of descent in optax, where it is not called scale_by_NAME.
_SCALES = {
    "adabelief": "scale_by_belief",
    "adagrad": "scale_by_rss",
    "rmsprop": "scale_by_rms",
}


def _named(text: str) -> optax.GradientTransformation:
    """Returns the optimizer that a config names: of a plug-in, else of optax.

    Its updates point up the gradient and know no learning rate.
    """
    key = "optimizer.name"
    spec = components.parse(text, key)
    if spec.name in components.names("optimizer"):
        made = components.make("optimizer", text, key)
        if not isinstance(made, optax.GradientTransformation):
            raise config.ConfigError(f"{key}={text}: must return an optax.GradientTransformation")
        return made
    scale = getattr(optax, _SCALES.get(spec.name, f"scale_by_{spec.name}"), None)
    if scale is not None:
        return components.call(scale, spec, key)
    # The others, such as lamb and adafactor, descend by themselves.
    whole = getattr(optax, spec.name, None) or getattr(optax.contrib, spec.name)
    return optax.chain(components.call(whole, spec, key, learning_rate=1.0), optax.scale(-1.0))
