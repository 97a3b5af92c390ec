"""Names of split folders: `val`, `valid` and `validation` are synonyms."""

from collections.abc import Collection

TRAIN = ("train", "training")
VALIDATION = ("validation", "val", "valid", "dev", "eval", "evaluation", "minival")
TEST = ("test", "testing")
KNOWN = (*TRAIN, *VALIDATION, *TEST)


def is_split(name: str) -> bool:
    """Returns whether a folder has the name of a split, ignoring case."""
    return name.lower() in KNOWN


def find(wanted: str, there: Collection[str]) -> str | None:
    """Returns the folder of a split, or None if there is none or more than one candidate.

    This is the folder of that name, else the only one with a synonym. Without a test split, a
    validation split replaces it. A test split never replaces validation, because choosing a
    checkpoint on it would invalidate the test.
    """
    if wanted in there:
        return wanted
    for kind in (TRAIN, VALIDATION, TEST):
        if wanted.lower() in kind:
            found = [name for name in there if name.lower() in kind]
            if not found and kind is TEST:
                found = [name for name in there if name.lower() in VALIDATION]
            return found[0] if len(found) == 1 else None
    return None


def for_evaluation(there: Collection[str]) -> str | None:
    """Returns the split to evaluate while training: validation, else test."""
    for kind in (VALIDATION, TEST):
        for name in sorted(there):
            if name.lower() in kind:
                return name
    return None
