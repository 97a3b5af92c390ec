"""`vit_jax list --tasks`: what is here, and a command for everything that is not."""

import json
import shlex

import pytest

import tfds_fakes
from commands import error_line
from vit_jax import cli
from vit_jax.config import UserError
from vit_jax.data import availability, sources
from vit_jax.data.tasks import TASKS


def pretend(folder, version, format="array_record", name="x"):
    """Writes as much of a prepared dataset as can be seen from outside."""
    path = folder / version
    path.mkdir(parents=True)
    splits = [{"name": "train", "shardLengths": ["3", "4"]}, {"name": "test"}]
    facts = {"name": name, "version": version, "fileFormat": format, "splits": splits}
    (path / "dataset_info.json").write_text(json.dumps(facts))
    return path


def test_what_tfds_prepared_is_found(tmp_path):
    builder = tfds_fakes.prepare(tmp_path, "dtd", {"train": 5, "test": 3})
    found = availability.find_prepared(TASKS["vtab/dtd"].dataset, tmp_path)
    assert str(found.path) == str(builder.data_path)
    assert (found.version, found.format, found.readable) == ("3.0.1", "array_record", True)
    assert found.images == {"train": 5, "test": 3}
    # What is found is what a source opens.
    assert len(sources.open_task(TASKS["vtab/dtd"], "train", str(tmp_path))) == 5


def test_versions(tmp_path, monkeypatch):
    clevr, pets = TASKS["vtab/clevr-count"].dataset, TASKS["pets"].dataset
    assert availability.find_prepared(clevr, tmp_path / "nowhere") is None
    pretend(tmp_path / "clevr", "2.9.0")
    pretend(tmp_path / "oxford_iiit_pet", "3.2.0")
    (tmp_path / "clevr/3.1.0").mkdir()  # begun, not finished
    (tmp_path / "clevr/3.0.0.incomplete-1").mkdir()
    assert availability.find_prepared(clevr, tmp_path) is None
    assert availability.find_prepared(pets, tmp_path) is None
    pretend(tmp_path / "clevr", "3.0.9")
    pretend(tmp_path / "clevr", "3.0.10")
    assert availability.find_prepared(clevr, tmp_path).version == "3.0.10"
    assert availability.find_prepared(clevr, tmp_path).images == {"train": 7, "test": 0}
    # A newer one that cannot be read does not hide one that can.
    pretend(tmp_path / "clevr", "3.2.0", "tfrecord")
    assert availability.find_prepared(clevr, tmp_path).version == "3.0.10"
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert availability.find_prepared(clevr).version == "3.0.10"
    (tmp_path / "clevr/3.0.10/dataset_info.json").write_text("{")
    assert availability.find_prepared(clevr).version == "3.0.9"


def test_a_test_split_has_labels_if_this_project_packed_it(tmp_path):
    path = pretend(tmp_path / "photos", "1.0.0")
    assert availability.labeled_splits("photos", tmp_path) == ("train",)
    (path / "vit_jax.json").write_text("{}")
    assert availability.labeled_splits("photos:1.*.*", tmp_path) == ("train", "test")
    assert availability.labeled_splits("photos:2.*.*", tmp_path) == ()


def test_what_names_no_format_is_tfrecord(tmp_path):
    facts = pretend(tmp_path / "dtd", "3.0.1") / "dataset_info.json"
    facts.write_text(facts.read_text().replace("fileFormat", "other"))
    found = availability.find_prepared(TASKS["vtab/dtd"].dataset, tmp_path)
    assert (found.format, found.readable) == ("tfrecord", False)


def test_a_name_is_looked_for_before_anything_is_fetched(tmp_path):
    pretend(tmp_path / "cifar10", "3.0.2")
    availability.check_prepared("cifar10", tmp_path)
    availability.check_prepared("cifar10:3.*.*", tmp_path)
    availability.check_prepared("of_mine", tmp_path)  # TFDS may know it
    for name, task in (("cifar10:2.*.*", "cifar10"), ("eurosat/rgb:2.*.*", "vtab/eurosat")):
        assert error_line(UserError, availability.check_prepared, name, tmp_path) == (
            f"data.name={name}: not in {tmp_path}; run `vit_jax prepare {task} "
            f"--data-dir={tmp_path}`"
        )


def test_configs_and_real(tmp_path):
    pretend(tmp_path / "eurosat", "2.0.0")
    eurosat, real = TASKS["vtab/eurosat"].dataset, TASKS["imagenet-real"].dataset
    assert availability.find_prepared(eurosat, tmp_path) is None
    pretend(tmp_path / "eurosat/rgb", "2.0.0")
    assert availability.find_prepared(eurosat, tmp_path).version == "2.0.0"
    assert availability.find_prepared(real, tmp_path) is None
    (tmp_path / "imagenet_real").mkdir()
    (tmp_path / "imagenet_real/real.json").write_text("[]")
    assert availability.find_prepared(real, tmp_path).readable


def test_every_missing_task_has_a_command_that_the_command_line_takes(tmp_path):
    parser = cli.command_parser("prepare")
    for entry in availability.task_entries(tmp_path):
        assert not entry.here
        words = shlex.split(entry.command)
        assert words[:2] == ["vit_jax", "prepare"]
        args = parser.parse_all(words[2:])
        assert args.tasks == [entry.task.name]
        assert args.data_dir == str(tmp_path)
        assert bool(args.sources) == bool(entry.task.dataset.files)


def test_the_tables(tmp_path, capsys):
    pretend(tmp_path / "cifar100", "3.0.2")
    pretend(tmp_path / "cifar10", "3.0.2", "tfrecord")
    pretend(tmp_path / "imagenet2012_corrupted/fog_1", "3.1.0")
    assert cli.main(["list", "--tasks", f"--data-dir={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert rows["cifar100"][-1] == rows["vtab/cifar100"][-1] == "3.0.2"
    assert rows["cifar10"][-3:] == ["3.0.2", "as", "tfrecord"]
    assert rows["vtab/dtd"][-5:] == ["47", "train[:800]", "validation[:200]", "test", "no"]
    assert rows["imagenet-c/*"][-3:] == ["1", "of", "95"]
    assert f"vit_jax prepare vtab/dtd --data-dir={tmp_path}" in lines
    copy = f"--from={tmp_path}/cifar10/3.0.2 --data-dir=ANOTHER"
    assert f"vit_jax prepare cifar10 {copy}" in lines
    assert not any(line.startswith("vit_jax prepare cifar100 ") for line in lines)
    assert "# and so on for the other 93" in lines
    # cifar100 of three groups, and the one corruption.
    assert lines[-1] == f"4 of {len(TASKS)} are in {tmp_path}"


def test_json(tmp_path, capsys):
    pretend(tmp_path / "cifar100", "3.0.2")
    assert cli.main(["list", "--tasks", "--json", f"--data-dir={tmp_path}"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert list(values) == list(TASKS)
    one, other = values["vtab/cifar100"], values["vtab/clevr-count"]
    assert (one["here"], one["version"], one["command"]) == (True, "3.0.2", None)
    assert one["path"] == f"{tmp_path}/cifar100/3.0.2"
    assert one["records"] == {"train": 7, "test": 0}
    assert one["images"] == {"train": 800, "held_out": 200, "whole": 1000, "test": 10_000}
    assert not other["here"]
    assert other["command"] == f"vit_jax prepare vtab/clevr-count --data-dir={tmp_path}"
    assert (other["labels"], other["group"]) == ("clevr-count", "VTAB Structured")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "--table=3"], "--table: does not go with --tasks"),
        (["--tasks", "--weights"], "--weights: does not go with --tasks"),
        (["--data-dir=x"], "--data-dir=x: needs --tasks"),
    ],
)
def test_flags_that_do_not_go_together(arguments, message, capsys):
    assert cli.main(["list", *arguments]) == UserError.exit_code
    assert capsys.readouterr().err == f"vit_jax: {message}\n"


def test_a_bucket_that_cannot_be_read_is_one_line(monkeypatch, capsys):
    def fails(self):
        raise PermissionError("anonymous caller")

    monkeypatch.setattr(type(availability.directory("gs://bucket")), "is_dir", fails)
    assert cli.main(["list", "--tasks", "--data-dir=gs://bucket/x"]) == UserError.exit_code
    assert capsys.readouterr().err == (
        "vit_jax: --data-dir=gs://bucket/x: cannot be read: anonymous caller; for a private bucket "
        "first: gcloud auth application-default login\n"
    )
