"""Digests of parts: where one ends and the next begins counts."""

import hashlib

from vit_jax.utils import digests


def test_a_digest_covers_the_parts_and_their_lengths():
    whole = b"\x02\0\0\0\0\0\0\0ab\x01\0\0\0\0\0\0\0c"
    assert digests.digest(b"ab", b"c") == hashlib.sha256(whole).hexdigest()[:16]
    assert digests.digest(b"a", b"bc") != digests.digest(b"ab", b"c")
