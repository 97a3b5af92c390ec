import types

import jax
import numpy as np
import pytest

from vit_jax import config, weights
from vit_jax.utils import messages
from vit_jax.weights import mapping
from vit_jax.weights.arrays import Arrays, ArraySpec
from vit_jax.weights.mapping import MappingReport, Rule, linear

FACTS = mapping.ModelSpec(model=config.Model(), data=config.Data())
# A model of three layers and a ResNet of 1 and 3 units, far smaller than there are.
SHAPES = {
    "cls": (1, 1, 2),
    "encoder/attention/query/kernel": (3, 4, 2, 3),
    "encoder/attention/key/kernel": (3, 4, 2, 3),
    "head/kernel": (4, 5),
    "resnet/stage1/first/gn1/scale": (6,),
    "resnet/stage2/first/gn1/scale": (7,),
    "resnet/stage2/rest/gn1/scale": (2, 7),
}
RULES = [
    Rule("token", "cls"),
    Rule("layer{layer}.qk", "encoder/attention/query/kernel", linear(), 0, 2),
    Rule("layer{layer}.qk", "encoder/attention/key/kernel", linear(), 1, 2),
    Rule("classes", "head/kernel", linear()),
    Rule("b{stage1}.u{unit1:02d}/{stage}{unit}", "resnet/unit/gn1/scale", mapping.SPREAD),
]


@pytest.fixture(autouse=True)
def model(monkeypatch):
    """The model of SHAPES, whatever the facts."""
    shapes = {n: jax.ShapeDtypeStruct(shape, np.float32) for n, shape in SHAPES.items()}
    nested = mapping.tree_utils.nest(shapes)
    fake = types.SimpleNamespace(shapes=lambda: nested)
    monkeypatch.setattr(mapping, "create_classifier", lambda facts: fake)


@pytest.fixture
def flat():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


@pytest.fixture
def source(flat):
    """What RULES make of the parameters, by hand."""
    query, key = flat["encoder/attention/query/kernel"], flat["encoder/attention/key/kernel"]
    return {
        "token": flat["cls"],
        **{
            f"layer{i}.qk": np.concatenate([query[i].reshape(4, 6).T, key[i].reshape(4, 6).T])
            for i in range(3)
        },
        "classes": flat["head/kernel"].T,
        "b1.u01/00": flat["resnet/stage1/first/gn1/scale"].reshape(1, 1, 1, 6),
        "b2.u01/10": flat["resnet/stage2/first/gn1/scale"].reshape(1, 1, 1, 7),
        "b2.u02/11": flat["resnet/stage2/rest/gn1/scale"][0].reshape(1, 1, 1, 7),
        "b2.u03/12": flat["resnet/stage2/rest/gn1/scale"][1].reshape(1, 1, 1, 7),
    }


def held(arrays, reads=None):
    """Arrays as if they were in a file; the names of those read are put on a list."""
    specs = {name: ArraySpec(array.shape, array.dtype) for name, array in arrays.items()}

    def read(name):
        if reads is not None:
            reads.append(name)
        return arrays[name].copy()

    return Arrays(specs, read)


def read(arrays, rules=RULES, dropped=()):
    params, report = mapping.read_params(held(arrays), rules, dropped, FACTS)
    return mapping.tree_utils.flatten(params), report


def refusal(arrays, dropped=()):
    with pytest.raises(weights.WeightsError) as raised:
        read(arrays, dropped=dropped)
    assert len(str(raised.value)) <= messages.TEXT
    return raised.value.args[0]  # all of it: people see the ends of a long one


def equal(given, expected):
    assert given.keys() == expected.keys()
    for name, array in expected.items():
        assert given[name].dtype == np.float32
        np.testing.assert_array_equal(given[name], array, err_msg=name)


def test_in_and_out(flat, source):
    reads = []
    params, report = mapping.read_params(held(source, reads), RULES, (), FACTS)
    equal(mapping.tree_utils.flatten(params), flat)
    assert report == MappingReport(used=9)
    assert sorted(reads) == sorted(source), "an array of several parts is read once"
    out = mapping.write_arrays(params, RULES, FACTS)
    equal(out, source)
    assert all(array.flags.c_contiguous for array in out.values())


def test_what_is_wrong_with_arrays(source):
    given = {
        **source,
        "token": source["token"].astype(np.int32),
        "layer1.qk": source["layer1.qk"].T,
        "classes": source["classes"] * np.inf,
        "extra": np.zeros(3),
    }
    del given["b2.u02/11"]
    assert refusal(given) == (
        "token is int32, not a type of weights; layer1.qk is (4, 12), not (12, 4); "
        "classes is not finite; b2.u02/11 is missing; extra is not part of the model"
    )


def test_report():
    report = MappingReport(
        used=3,
        dropped={f"opt/{i}": "of the optimizer" for i in range(5)}
        | {f"step{i}": "a count" for i in range(4)},
        fresh={"head/kernel": "new"},
        resized={"position/table": "from 2 x 2 to 3 x 3 patches"},
    )
    assert report.lines() == [
        "used: 3 arrays",
        "dropped: opt/0, opt/1, opt/2, opt/3 and 1 more (of the optimizer)",
        "dropped: step0, step1, step2, step3 (a count)",
        "fresh: head/kernel (new)",
        "resized: position/table (from 2 x 2 to 3 x 3 patches)",
    ]
    assert MappingReport().lines() == ["used: 0 arrays"]


def test_very_many_problems_are_counted():
    given = {f"extra{i:02d}": np.zeros(1) for i in range(30)}
    *told, more = refusal(given).split("; ")
    assert 300 < len("; ".join(told)) <= 350
    assert more == f"and {39 - len(told)} more"


def test_facts_from_shapes():
    specs = {
        name: ArraySpec(shape, np.dtype(np.float32))
        for name, shape in {"a": (2, 3), "b": (0, 3), "layer9/a": (1,), "layer11/b": (1,)}.items()
    }
    assert mapping.array_shape(specs, "a", 2) == (2, 3)
    for name, axes in (("a", 3), ("b", 2), ("c", 1)):
        with pytest.raises(weights.WeightsError, match=f"no {name} with {axes} axes$"):
            mapping.array_shape(specs, name, axes)
    for block, layers in (("layer", 12), ("block", 0)):
        rule = Rule(f"{block}{{layer}}/a", "encoder/norm1/scale")
        assert mapping.Shapes(specs, [rule]).depth("encoder/") == layers


def test_square():
    assert mapping.square(196) == (14, 14)
    assert mapping.square(1) == (1, 1)
    for patches in (-1, 0, 2, 195):
        with pytest.raises(weights.WeightsError, match=f"^contains positions of {patches} patches"):
            mapping.square(patches)
