"""A short digest of bytes, for records of data, code and options."""

import hashlib


def digest(*parts: bytes) -> str:
    """16 hex digits of SHA-256 over the parts and their lengths."""
    total = hashlib.sha256()
    for part in parts:
        # With its length, or ("ab", "c") and ("a", "bc") would have one digest.
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()[:16]
