"""What the pages say exists: commands, flags, options, names, files, sections, modules."""

import ast
import os
import re
import subprocess
import sys

import pytest
import yaml

import documents
import runs
import vit_jax
from vit_jax import cli, config
from vit_jax.config import catalog
from vit_jax.inference.loaded_model import LoadedModel
from vit_jax.training import run_config

PAGES = {str(page.relative_to(runs.ROOT)): page for page in documents.PAGES}
SECTIONS = {key.partition(".")[0] for key, _, _ in config.declared() if "." in key}
KEYS = {key for key, _, _ in config.declared()}
METHODS = {f"model.{name}" for name in (*dir(LoadedModel), "params")}
OTHERS = ("git", "gcloud", "ssh-keygen", "ssh-add", "pip", "peer/bin/pip", "python", "export", "cd")
OTHERS += (".", "mkdocs", "apt-get", "docker", "sky", "kubectl")


def shell_commands():
    return [
        pytest.param(command, id=f"{name}:{block.line}:{number}")
        for name, page in PAGES.items()
        for block in documents.blocks(page, "sh", "bash")
        for number, command in enumerate(documents.commands(block))
    ]


@pytest.mark.parametrize("command", shell_commands())
def test_a_command_is_one_that_there_is(command):
    program, *arguments = documents.without_redirection(command)[0]
    if program == "vit_jax":
        check(arguments)
    elif program.startswith(("launch/", ".ci/")):
        assert (runs.ROOT / program).is_file()
    else:
        assert program in OTHERS or program.startswith(".venv/bin/"), command


def check(arguments):
    """Parses a command, and looks up the config and the options that it names."""
    arguments, overrides, plugins = cli.split_options(arguments)
    args = cli.parse_command(arguments)
    assert args.command.TAKES_CONFIG or not overrides
    if plugins:
        return  # which are not here; tests/config/test_plugins.py runs those commands
    named = [getattr(args, "name", None), *(getattr(args, "names", None) or [])]
    for name in named:
        if name in catalog.names():
            cfg = config.build(config.override(catalog.load_values(name), overrides))
            run_config.check_read(cfg, overrides)
        elif name and args.name_of_command in ("train", "transfer", "show", "preflight"):
            assert name == "NAME" or "*" in name, name


def test_the_compiler_knows_every_flag_that_a_page_sets():
    """XLA ends a process at a flag that it does not know; a CPU's has those of GPUs too."""
    texts = [page.read_text() for page in PAGES.values()]
    flags = sorted({flag for text in texts for flag in re.findall(r"--xla_gpu_\w+=\w+", text)})
    assert any("latency_hiding_scheduler" in flag for flag in flags)
    environment = os.environ | {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=f"{name}:{block.line}")
        for name, page in PAGES.items()
        for block in documents.blocks(page, "python")
    ],
)
def test_a_python_block_names_what_there_is(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "vit_jax":
            assert node.attr in vit_jax.__all__


@pytest.mark.parametrize("name", PAGES)
def test_options_in_a_text_are_options(name):
    text = documents.FENCE.sub("", PAGES[name].read_text())
    foreign = re.compile(r"^\| `(config|pp_|--|python|value_range)[^|]*\|", re.MULTILINE)
    named = re.findall(r"`(?:--config\.)?([a-z]+\.[a-z_0-9]+)(?:=[^`]*)?`", foreign.sub("|", text))
    files = {
        path.name for folder in ("vit_jax", "docs") for path in (runs.ROOT / folder).rglob("*.*")
    }
    options = {key for key in named if key.partition(".")[0] in SECTIONS} - files
    assert options <= KEYS | METHODS


def anchors(page):
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", documents.FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in plain}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    text = documents.FENCE.sub("", PAGES[name].read_text())
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if ":" in link:
            continue
        target = PAGES[name].parent / link if link else PAGES[name]
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), f"{link}#{anchor}"


@pytest.mark.parametrize("name", PAGES)
def test_files_that_a_text_names_are_there(name):
    named = r"`((?:tests|vit_jax|docs|configs|launch|research)/[\w./-]+)`"
    paths = re.findall(named, PAGES[name].read_text())
    assert [path for path in paths if not (runs.ROOT / path).exists()] == []


def test_the_site_has_every_page():
    """Those that people write; the build itself checks the others."""

    def files(entry):
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry.values() if isinstance(entry, dict) else entry:
                yield from files(part)

    text = (runs.ROOT / "mkdocs.yml").read_text()
    nav = set(files(yaml.safe_load(text)["nav"]))
    written = {
        str(p.relative_to(documents.DOCS)) for p in PAGES.values() if documents.DOCS in p.parents
    }
    assert written <= nav


def test_the_version_is_everywhere_the_same():
    assert f"\nversion: {vit_jax.__version__}\n" in (runs.ROOT / "CITATION.cff").read_text()
    assert f"\n## {vit_jax.__version__} " in (runs.ROOT / "CHANGELOG.md").read_text()
