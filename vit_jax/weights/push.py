"""Uploads a folder of weights to the Hugging Face Hub."""

import os
import pathlib
import re
import types
from collections.abc import Sequence

from vit_jax.utils import storage
from vit_jax.weights import importing, readers
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.hub import is_offline

REPOSITORY = re.compile(r"[\w\-.]{1,96}/[\w\-.]{1,96}", re.ASCII)
EXTRA = "pip install 'vit_jax[hf]'"
LOGIN = "set HF_TOKEN, or run `hf auth login`"


def push(folder: str | os.PathLike[str], repository: str, *, public: bool = False) -> list[str]:
    """Uploads a folder that `convert` wrote in one commit; returns lines for people.

    The weights are read and verified first. The token is huggingface_hub's own: HF_TOKEN, or that
    of its login. HF_ENDPOINT names another server.

    Args:
      folder: of timm or Hugging Face, with its config.json; its files alone are sent.
      repository: `USER/NAME` on the Hub, made if it does not exist.
      public: whether everybody sees a repository that is made; one that exists stays as it is.

    Raises WeightsError, in one line; the repository then keeps the files it had.
    """
    path = storage.given_path("push", folder, remote=False)
    if not REPOSITORY.fullmatch(repository) or ".." in repository:
        raise WeightsError(f"push {repository}: must be USER/NAME, as on the Hub")
    if is_offline():
        raise WeightsError(f"push {repository}: VIT_JAX_OFFLINE forbids the network")
    files = _files(path)
    importing.load(path)  # damaged weights are not worth an upload
    hub = _import_hub()
    # An empty variable counts as none.
    api, said, left = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None), [], ""
    others: list[str] = []
    try:
        there = api.repo_exists(repository)
        if there:
            others = api.list_repo_files(repository)
            _check_others(others, files, repository)
        else:
            api.create_repo(repository, private=not public)
            left = "; the repository was made, and is empty"
        api.upload_folder(
            repo_id=repository,
            folder_path=path,
            # By name: a file that appears in the folder meanwhile is not sent.
            allow_patterns=[file.name for file in files],
            commit_message="Weights written by vit_jax",
        )
    except hub.errors.HfHubHTTPError as error:
        refused = error.response.status_code in (401, 403)
        reason = f"no token that may write there; {LOGIN}" if refused else _first_line(error)
        raise WeightsError(f"push {repository}: {reason}{left}") from error
    except (hub.errors.HTTPError, OSError, ValueError) as error:  # no connection, an odd answer
        raise WeightsError(
            f"push {repository}: {api.endpoint}: {_first_line(error)}{left}"
        ) from error
    if not there:
        said.append("the repository is public" if public else "the repository is private")
    elif public:
        said.append("--public: the repository was there, and is as public as it was")
    if not any(file.name == "README.md" for file in files):
        shows = "the model card it has" if "README.md" in others else "no model card"
        said.append(f"README.md: is missing, so the Hub shows {shows}")
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    where = f"{api.endpoint}/{repository}"
    return [*said, f"pushed: {where} ({len(files)} files, {megabytes:.1f} MB)"]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _import_hub() -> types.ModuleType:
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
        import huggingface_hub.errors  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise WeightsError(f"push: huggingface_hub is not installed; {EXTRA}") from None
    return huggingface_hub


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files to send; raises WeightsError for a folder that holds anything else."""
    if not folder.is_dir():
        raise WeightsError(f"{folder}: no such folder; vit_jax convert --to=hf writes one")
    if not (folder / "config.json").is_file() or (folder / "checkpoints").exists():
        raise WeightsError(
            f"{folder}: is not a folder of weights; write one with vit_jax convert --to=hf, or timm"
        )
    found = sorted(folder.iterdir())
    for file in found:
        # A link could send any file of this machine, a hidden file is often a secret.
        if file.is_symlink() or not file.is_file() or file.name.startswith("."):
            raise WeightsError(f"{file}: is not one of the weights; move it away, then push again")
    return found


def _check_others(there: Sequence[str], files: Sequence[pathlib.Path], repository: str) -> None:
    """Raises WeightsError if the Hub has files of weights that the folder's would not replace.

    Such are also those of another project, by which a reader would preprocess images otherwise.
    """
    names = {file.name for file in files}
    for name in there:
        weights = pathlib.PurePosixPath(name).suffix in readers.FORMATS
        if (weights or name in importing.BESIDE) and name not in names:
            would = "people would load either" if weights else "others would read it with these"
            raise WeightsError(
                f"push {repository}: has {name}, which this folder lacks, and {would}; "
                "delete it there, or push to another name"
            )
