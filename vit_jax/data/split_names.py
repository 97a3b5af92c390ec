"""What folders of splits are called: `val`, `valid` and `validation` are one thing."""

from collections.abc import Collection

TRAIN = ("train", "training")
VALIDATION = ("validation", "val", "valid", "dev", "eval", "evaluation", "minival")
TEST = ("test", "testing")
KNOWN = (*TRAIN, *VALIDATION, *TEST)


def is_split(name: str) -> bool:
    """Returns whether a folder is called as splits are, in letters of any case."""
    return name.lower() in KNOWN


def find(wanted: str, there: Collection[str]) -> str | None:
    """Returns the folder that holds a split, or None where none or several could.

    It is the one of that name, else the only one with a name that means the same. Where there is
    no test split, a validation split is what can be measured on; a test split never stands for
    validation, as what is chosen on it would be measured on it too.
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
    """Returns the split to measure on while training: for validation, else for tests."""
    for kind in (VALIDATION, TEST):
        for name in sorted(there):
            if name.lower() in kind:
                return name
    return None
