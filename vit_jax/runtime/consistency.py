"""What the processes of a run must have in common, checked before the first step."""

import functools
import hashlib
import json
import pathlib
import secrets
from collections.abc import Mapping

import jax

from vit_jax import config
from vit_jax.runtime import collectives, distributed
from vit_jax.utils import storage

MOST_BYTES = 2048
REMEDIES = {
    "code": "install the same version everywhere",
    "plugins": "give every process the same --plugins, of equal content",
    "jax": "install the same version everywhere",
    "config": "give every process the same command",
    "data": "data.root must hold the same files on every host",
    "workdir": "--workdir must be on storage that all hosts share",
}


def check(workdir: pathlib.Path, facts: Mapping[str, str]) -> list[str]:
    """Raises ConfigError in every process, about the first one that differs from process 0.

    Args:
      workdir: the run directory; whether all processes see the same one is checked too.
      facts: what must be equal, as short texts by the keys of `REMEDIES`; `host` and `seconds`,
        the time it took to come here, may differ.

    Returns a line for each process with these two; none where this process is alone.
    """
    if jax.process_count() == 1:
        return []
    folder = workdir / distributed.FOLDER
    token = collectives.broadcast_from_main(functools.partial(_write_token, folder))
    everyone = _gather(dict(facts) | {"workdir": _read_token(folder, token)})
    for number, theirs in enumerate(everyone):
        for key, remedy in REMEDIES.items():
            ours = everyone[0].get(key)
            if theirs.get(key) != ours:
                raise config.ConfigError(
                    f"process {number} on {theirs['host']}: its {key} is {theirs.get(key)}, but "
                    f"{ours} on process 0, {everyone[0]['host']}; {remedy}"
                )
    return [
        f"process {number} on {facts['host']}: ready after {facts['seconds']} s"
        for number, facts in enumerate(everyone)
    ]


@functools.cache
def code() -> str:
    """Returns 16 hex digits of this package's source."""
    root = pathlib.Path(__file__).parents[1]
    total = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        total.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return total.hexdigest()[:16]


def _write_token(folder: pathlib.Path) -> str:
    token = secrets.token_hex(8)
    with storage.os_errors():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "token").write_text(token)
    return token


def _read_token(folder: pathlib.Path, token: str) -> str:
    try:
        with storage.os_errors():
            found = (folder / "token").read_text()
    except OSError:
        return "without what process 0 writes there"
    return "shared" if found == token else "another directory of that name"


def _gather(facts: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns the facts of every process."""
    text = json.dumps(facts)  # ASCII
    assert len(text) <= MOST_BYTES, facts
    return [json.loads(one) for one in collectives.gather(text, MOST_BYTES)]
