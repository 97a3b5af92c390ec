"""The pickle machine against Python's own, on values that need no names; and what it refuses."""

import collections
import pickle

import pytest

from vit_jax.utils import pickles

SHARED = ["twice", 2**40]
VALUE = {
    "numbers": [0, -1, 255, 70_000, 2**80, 0.5, True, False, None],
    "texts": ("", "é", b"bytes", "long" * 100),
    "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    1: SHARED,
    None: {"again": SHARED, "empty": [{}, []], "one": [SHARED[:1]]},
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_of_every_protocol(protocol):
    value = VALUE if protocol > 2 else {**VALUE, "texts": ("", "é")}  # whose bytes are a call
    found = pickles.load_pickle(pickle.dumps(value, protocol))
    assert found == value
    assert found[1] is found[None]["again"]


def test_names_are_called_if_they_are_allowed():
    data = pickle.dumps(collections.OrderedDict(a=1), 2)
    allowed = {"collections OrderedDict": lambda *pairs: {"made": True}}
    assert pickles.load_pickle(data, allowed) == {"made": True, "a": 1}
    with pytest.raises(pickles.Refused, match=r"the name collections\.OrderedDict"):
        pickles.load_pickle(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80\x02\x86.", "the stack is empty"),  # a pair of nothing
        (b"\x80\x02K\x01K\x02.", "too many values"),
        (b"\x80\x02}K\x01.", "too many values"),
        (b"\x80\x02h\x00.", "0"),  # nothing has been noted there
    ],
)
def test_what_is_no_pickle_is_an_error(data, reason):
    with pytest.raises(ValueError, match=f"^is not a valid pickle: {reason}"):
        pickles.load_pickle(data)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x80\x02K\x01K\x02a.", "a int for a list"),
        (b"\x80\x02}(K\x01K\x02\x86K\x03u.", "a tuple for a key"),
        (b"\x80\x02K\x01)R.", "a int for a Global"),
        (b"\x80\x02]K\x01b.", "a state for a list"),
        (b"\x80\x02K\x01Q.", "the operation BINPERSID"),
        # What one pickle may name a million times: long arguments, and keys that hash slowly.
        (b"\x80\x02cdo\nit\n(" + b"N" * 17 + b"tR.", "a call with 17 arguments"),
        (b"\x80\x02}(\x8a\x80" + b"\x01" * 128 + b"Nu.", "a key longer than 1,000 [a-z ]+"),
        (b"\x80\x02}(X\xe9\x03\0\0" + b"a" * 1001 + b"Nu.", "a key longer than 1,000 [a-z ]+"),
    ],
)
def test_other_contents_are_refused_by_name(data, what):
    with pytest.raises(pickles.Refused, match=f"^{what}$"):
        pickles.load_pickle(data, {"do it": lambda *_: None})


def test_keys_and_calls_up_to_the_limit_are_read():
    allowed = {"do it": lambda *arguments: len(arguments)}
    assert pickles.load_pickle(b"\x80\x02cdo\nit\n(" + b"N" * 16 + b"tR.", allowed) == 16
    assert pickles.load_pickle(pickle.dumps({"a" * 1000: 1, 2**999: 2})) == {
        "a" * 1000: 1,
        2**999: 2,
    }
