"""Trees of arrays addressed by path: `encoder/attention/query/kernel`."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

# A pytree: nested dicts, tuples or the states of optax, of arrays or of their shapes.
Tree = Any


def path_name(path: jax.tree_util.KeyPath) -> str:
    """The slash-joined name of a jax key path."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def flatten(tree: Tree) -> dict[str, Any]:
    """Leaves by slash-joined name, in jax's leaf order."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def map_named(function: Callable[..., object], tree: Tree, *rest: Tree) -> Tree:
    """The tree of `function(name, leaf, *leaves of rest)`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function(path_name(path), *leaves), tree, *rest
    )


def nest(flat: Mapping[str, object]) -> dict[str, Any]:
    """Nested dicts from slash-joined names; the inverse of `flatten` on dicts."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def count(tree: Tree) -> int:
    """The number of scalars in all leaves, which may be shapes only."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
