"""The classes of data and the outputs of a head, matched by name."""

import types
import warnings

import pytest

import toys
from vit_jax.config import ConfigError
from vit_jax.data import class_matching
from vit_jax.data.source import Record
from vit_jax.runs import resume
from vit_jax.utils.errors import AssumptionWarning

IMAGENET = class_matching.imagenet()
WORDS = tuple(words for _, words in class_matching.imagenet_table())
NUMBERS = tuple(f"class {number}" for number in range(1000))
SORTED = tuple(sorted(map(str, range(12))))  # 0, 1, 10, 11, 2, ...: torchvision's order


@pytest.mark.parametrize(
    ("head", "classes", "outputs"),
    [
        (("cat", "dog", "emu"), ("cat", "dog", "emu"), [0, 1, 2]),
        (("emu", "cat", "dog"), ("cat", "dog", "emu"), [1, 2, 0]),
        (tuple(map(str, range(12))), SORTED, [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]),
        (SORTED, ("11", "2", "9"), [3, 4, 11]),
        (("Cat", "cat"), ("cat", "Cat"), [1, 0]),  # a difference that both sides make
        (("a", "a", "b"), ("a", "a", "b"), [0, 1, 2]),  # of one list, so nothing is open
    ],
)
def test_equal_names_need_no_word(head, classes, outputs, recwarn):
    assert class_matching.match(head, classes, "x") == outputs
    assert not recwarn.list


@pytest.mark.parametrize(
    ("head", "classes", "outputs", "said"),
    [
        (("cat", "dog"), ("Dog", "cat"), [1, 0], "x: 'Dog' of the data is taken for 'dog' of"),
        (("cat", "dog"), ("cat ", "dog"), [0, 1], "x: 'cat ' of the data is taken for 'cat'"),
        (
            ("hot dog", "Maine-Coon", "emu"), ("emu", "hot_dog", "maine coon"), [2, 0, 1],
            "'hot_dog' of the data is taken for 'hot dog' of the head, and 1 other likewise",
        ),
        (("caf\u00e9", "b"), ("b", "cafe\u0301"), [1, 0], "taken for 'caf\u00e9' of the head"),
        (("stra\u00dfe", "b"), ("STRASSE",), [0], "'STRASSE' of the data is taken for"),
        (("a/b", "c"), ("c", "a_b"), [1, 0], "'a_b' of the data is taken for 'a/b' of the head"),
        (("1", "2", "x"), ("2.0", "1.0"), [1, 0], "'2.0' of the data is taken for '2' of the head"),
        (("class 0", "class 1"), ("01", "0"), [1, 0], "x: the head's outputs have no names; '01'"),
        (
            tuple(f"class {k}" for k in range(12)), SORTED, [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9],
            "have no names; '0' of the data is taken for 'class 0' of the head, and 11 others "
            "likewise; wrong if it was trained on folders in the order of texts: 0, 1, 10, 11, ...",
        ),
        (
            ("class 0", "class 1", "class 2"), ("ant", "bee", "cow"), [0, 1, 2],
            "the head's outputs have no names; taken for the data's classes in order: 0 is ant, 1 "
            "is bee, 2 is cow",
        ),
        (NUMBERS, (IMAGENET[7], IMAGENET[2]), [7, 2], "1,000 outputs have no names; taken for the"),
        (WORDS, (IMAGENET[517], IMAGENET[134]), [517, 134], "ImageNet"),  # both are a crane
        (WORDS, IMAGENET[::-1], list(range(1000))[::-1], "names of one class of ImageNet"),
        (WORDS[::-1], ("n01440764",), [999], "'n01440764' of the data is taken for 'tench, Tinca"),
        (WORDS[::-1], IMAGENET[638:640], [361, 360], "'n03710637' of the data is taken for 'maill"),
        (WORDS, tuple(sorted(map(str, range(1000)))), sorted(range(1000), key=str), "ImageNet"),
    ],
)  # fmt: skip
def test_what_is_assumed_is_said(head, classes, outputs, said):
    with pytest.warns(AssumptionWarning) as told:
        assert class_matching.match(head, classes, "x") == outputs
    assert said in str(told[0].message)


@pytest.mark.parametrize(
    ("head", "classes", "reason"),
    [
        (
            ("cat", "dog"), ("ant", "bee"),
            "no class of the data is one of the head; data (2): ant, bee; head (2): cat, dog; "
            "mend it",
        ),
        (("0", "1"), ("cat", "dog"), "data (2): cat, dog; head (2"),  # as of digits: names, too
        (NUMBERS, ("0", "1"), "data (2): 0, 1; head (1000, without names): class 0,"),
        (
            ("cat", "dog"), ("cat", "it's", "dog"),
            "the head has no output for 1 of the 3 classes of the data: it's; head: cat, dog; set "
            "data.classes=cat,dog to leave their images out",
        ),
        (("tench, Tinca", "b"), ("tench, Tinca", "b", "c"), "; head: tench, Tinca, b; mend it"),
        (("Cat", "cAt", "emu"), ("cat", "emu"), "for 1 of the 2 classes of the data: cat"),
        (("cat", "dog"), ("cat", "Cat"), "no output for 1 of the 2 classes of the data: Cat;"),
        (("a", "a"), ("a",), "several outputs of the head are called a (0, 1); give each"),
        (WORDS, ("crane", "tench"), "several outputs of the head are called crane (134, 517)"),
        (("class 0", "class 1"), ("1", "2"), "no output for 1 of the 2 classes of the data: 2;"),
        (("a", "b", "a"), ("a", "b"), "several outputs of the head are called a (0, 2); give each"),
    ],
)  # fmt: skip
def test_what_cannot_be_matched_is_an_error(head, classes, reason):
    with pytest.raises(ConfigError) as caught:
        class_matching.match(head, classes, "x", remedy="mend it", keep="data.classes")
    assert str(caught.value).startswith("x: ")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


PETS = toys.Made(2, lambda index: Record(b"", ((0,), (0, 1))[index]), ("dog", "cat"))


def test_labels_become_outputs_of_the_head():
    with pytest.warns(AssumptionWarning, match="has 2 of the head's 3 classes; .* out: emu"):
        found = class_matching.relabel(PETS, ("cat", "emu", "dog"), "x", several=True)
    assert (found.classes, found.outputs) == (("cat", "emu", "dog"), (0, 2))
    assert [found[index].label for index in (0, 1)] == [(2,), (0, 2)]
    other = class_matching.relabel(PETS, ("cat", "dog", "emu"), "x", several=True)
    assert len({PETS.fingerprint(), found.fingerprint(), other.fingerprint()}) == 3
    # All of them, in another order, leave nothing to say.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        class_matching.relabel(PETS, ("cat", "dog"), "x")
        names = class_matching.names_in(("dog", "emu"), ("ant", "dog"), "x")
    assert names == ("ant", "dog")
    with pytest.warns(AssumptionWarning, match="taken for 'dog'"):
        assert class_matching.names_in(("dog", "emu"), ("Dog",), "x") == ("dog",)


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (("cat", "emu"), r"not those this run started with: gone: dog; new: emu; restore them"),
        (("dog", "cat"), "started with: another order: cat, dog before, dog, cat now; restore"),
    ],
)
def test_a_run_does_not_go_on_with_other_classes(now, reason):
    """Not even with other data accepted: its head means the classes that it has learned."""
    record = {"classes": ["cat", "dog"], "data": "same", "step": 1, "metrics": {}}
    record |= {"config": {}, "examples": 2}
    saver = types.SimpleNamespace(restore=lambda *_, **__: ("state", record))
    session = types.SimpleNamespace(
        progress=types.SimpleNamespace(doing=lambda *_: None, say=lambda *_: None)
    )
    files, seal = types.SimpleNamespace(suspects=list), {**record, "classes": list(now)}
    with pytest.raises(ConfigError, match=reason):
        resume.restore(saver, None, seal, session, files, accept=("data",))
    assert not class_matching.differences(record["classes"], ("cat", "dog"))
