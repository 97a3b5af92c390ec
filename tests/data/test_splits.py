"""Which folder holds a split, and which split is evaluated while training."""

import pytest

from vit_jax.data import splits


@pytest.mark.parametrize(
    ("wanted", "there", "found"),
    [
        ("train", ["train", "val"], "train"),
        ("validation", ["train", "valid", "test"], "valid"),
        ("Val", ["VALIDATION", "Val"], "Val"),
        ("train", ["Training", "val"], "Training"),
        ("test", ["train", "val"], "val"),
        # Of two nobody says which; another kind of split stands in for neither of these.
        ("validation", ["val", "dev"], None),
        ("train", ["val", "test"], None),
        ("validation", ["train", "test"], None),
        ("cats", ["dogs"], None),
    ],
)
def test_the_folder_of_a_split(wanted, there, found):
    assert splits.find_folder(wanted, there) == found


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (["train", "test", "Val"], "Val"),
        (["train", "test"], "test"),
        (["val", "dev"], "dev"),
        (["train", "cats"], None),
    ],
)
def test_the_split_to_evaluate_on(there, found):
    assert splits.for_evaluation(there) == found


def test_names_of_splits_in_any_case():
    assert [splits.is_split(name) for name in ("train", "Val", "TEST", "cats")] == [1, 1, 1, 0]
