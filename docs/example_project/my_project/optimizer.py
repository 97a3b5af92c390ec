"""An optimizer: `--config.optimizer.name=sign_momentum --config.optimizer.decay=0.95`."""

import optax

import vit_jax


@vit_jax.register("optimizer", "sign_momentum")
def sign_momentum(decay: float = 0.9):
    """Signs of the averaged gradient (Signum).

    Clipping comes before it; weight decay and minus the learning rate come after it.
    """
    return optax.chain(optax.ema(decay), optax.scale_by_sign())
