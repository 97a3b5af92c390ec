"""ReaL, ObjectNet and sets with few classes, counted by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

import toys
from vit_jax.config import ConfigError
from vit_jax.data import real_labels
from vit_jax.data.real_labels import Reassessed
from vit_jax.data.source import DataError
from vit_jax.evaluation import class_subset, classification, multilabel

# The prediction is the largest of a row; ties go to the first class.
ROWS = [[0, 9, 80, 1], [70, 2, 3, 60], [5, 90, 4, 3], [1, 2, 3, 50], [8, 7, 60, 0], [9, 9, 1, 2]]
LABELS = [2, 0, 0, 1, 3, 1]
RIGHT = ((2, 3), (), (0,), (1, 3), (), (1,))  # ReaL's
NEVER = {"stop": lambda: False}


def reassessed(rows=ROWS, labels=LABELS, right=RIGHT):
    return Reassessed(toys.Toy(rows, labels), real_labels.Real(right, "digest"), "KEY")


@pytest.mark.parametrize("batch_size", [8, 16])
def test_real_by_hand(batch_size):
    cfg, source = toys.configure(batch_size), reassessed()
    split = toys.passing(source, cfg)
    measure = classification.Classification(toys.Echo(), cfg, split, source)
    results = measure(jnp.float32(0), **NEVER)
    # Predicted: 2, 0, 1, 3, 2, 0. Images 2 and 5 have no right class.
    assert results["real/count"] == 4
    assert results["real/top1"] == 2 / 4
    # Its own labels count for all.
    assert results["count"] == 6
    assert results["top1"] == 2 / 6
    alone = classification.Classification(
        toys.Echo(), cfg, toys.passing(toys.Toy(ROWS, LABELS), cfg)
    )(jnp.float32(0), **NEVER)
    assert alone == {key: results[key] for key in ("top1", "top5", "loss", "count")}


def test_nothing_with_a_right_class():
    cfg, source = toys.configure(8), reassessed(right=((), (), (), (), (), (1,)))
    one = reassessed(ROWS[:1], LABELS[:1], ((), (0,)))
    for each, count in ((source, 1), (one, 0)):
        split = toys.passing(each, cfg)
        results = classification.Classification(toys.Echo(), cfg, split, each)(
            jnp.float32(0), **NEVER
        )
        assert results["real/count"] == count
        assert ("real/top1" in results) == bool(count)


def test_other_images_than_real_has():
    with pytest.raises(ConfigError) as caught:
        reassessed(right=())
    assert str(caught.value) == (
        "KEY: val/ILSVRC2012_val_00000001.JPEG: no validation image of ImageNet, and ReaL has "
        "labels of no others; set data.eval_split=validation"
    )
    source = reassessed(right=RIGHT[:3])
    assert source[2].label == 2 * 4 + 0
    with pytest.raises(DataError, match="ILSVRC2012_val_00000004"):
        source[3]


def test_real_code_of_the_last_image_fits():
    labels = tuple((index % 1000,) for index in range(50_000))
    source = Reassessed(toys.Toy(ROWS, LABELS, 1000), real_labels.Real(labels, ""), "KEY")
    own, right = source.decode(np.array([49_999 * 1000 + 999, 0], np.int32))
    assert own.tolist() == [999, 0]
    assert right.tolist() == [[999], [0]]


def test_ranks():
    logits = jnp.array([[5.0, 4.0, 3.0, 2.0]] * 4 + [[5.0, jnp.nan, 3.0, 2.0]])
    right = jnp.array([[0, -1], [3, 1], [-1, -1], [2, -1], [0, 1]], jnp.int32)
    assert multilabel.ranks(logits, right).tolist() == [0, 1, 4, 2, 4]


def test_objectnet_by_hand():
    cfg = toys.configure(8)
    # Three classes of theirs: two of ours are right, none is, one is.
    table = np.array([[1, 2], [-1, -1], [0, -1]], np.int32)
    theirs = [0, 1, 2, 0, 1, 2]  # the first, third, fourth and sixth image count
    split = toys.passing(toys.Toy(ROWS, theirs, 3), cfg)
    measure = multilabel.MultiLabel(toys.Echo(), cfg, split, table)
    # Predicted 2 of (1, 2); 1, not 0; 3 of neither; 0 and so right.
    assert measure(jnp.float32(0), **NEVER) == {"top1": 2 / 4, "top5": 1.0, "count": 4}
    assert measure(jnp.float32(0), stop=lambda: True) is None


def test_only_classes_that_occur_compete():
    cfg = toys.configure(8)
    split = toys.passing(toys.Toy(ROWS, [3, 3, 1, 3, 1, 1]), cfg)
    measure = class_subset.ClassSubset(toys.Echo(), cfg, split)
    # Of 1 and 3: predicted 1, 3, 1, 3, 1, 1.
    assert measure(jnp.float32(0), **NEVER) == {"top1": 5 / 6, "top5": 1.0, "count": 6}
    assert measure(jnp.float32(0), stop=lambda: True) is None
