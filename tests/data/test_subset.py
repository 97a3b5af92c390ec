"""Some of the classes of a dataset: which examples, under which labels."""

import numpy as np
import pytest

from vit_jax import config
from vit_jax.data import sources


def digits(classes, split="train", train=True):
    data = config.Data(source="digits", classes=classes)
    return sources.open_source(data, split, train=train)


def test_examples_of_the_classes_named_in_their_order():
    whole = digits(None)
    for classes in (("0", "1", "2", "3", "4"), ("7", "3")):
        some = digits(classes)
        expected = [whole[i] for i in range(len(whole)) if str(whole[i].label) in classes]
        assert some.classes == classes
        assert len(some) == len(expected)
        for index, (image, label) in enumerate(expected):
            np.testing.assert_array_equal(some[index].image, image)
            assert classes[some[index].label] == str(label)
    assert some.name(0) == whole.name(next(i for i in range(9) if whole[i].label in (3, 7)))


def test_every_selection_has_its_fingerprint():
    selections = (None, ("0", "1"), ("1", "0"), ("0", "2"))
    assert len({digits(classes).fingerprint() for classes in selections}) == len(selections)
    assert digits(("0", "1")).fingerprint() == digits(("0", "1")).fingerprint()
    half = digits(("0", "1"), "train[:50%]")
    assert 0 < len(half) < len(digits(("0", "1")))


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        (("0", "x"), "data.classes=0,x: the data has no class x; known: 0, 1, 2"),
        ((), "data.classes=: must name some classes, each once; none keeps all"),
        (("1", "1"), "data.classes=1,1: must name some classes, each once; none keeps all"),
    ],
)
def test_classes_that_are_not_there(classes, says):
    with pytest.raises(config.ConfigError) as caught:
        digits(classes)
    assert str(caught.value).startswith(says)


def test_a_split_without_any_of_them():
    with pytest.raises(config.ConfigError) as caught:
        digits(("9",), "test[:1]", train=False)
    assert str(caught.value) == "data.classes=9: no example of data.eval_split is of these classes"


def test_the_option_on_the_command_line():
    values = config.override({}, {"data.source": "digits", "data.classes": "0,1,2,3,4"})
    assert config.build(values).data.classes == ("0", "1", "2", "3", "4")
