"""Which programs a batch of preflights compiles, and what is kept of them."""

import types
from unittest.mock import Mock

import pytest

from preflight_reports import create_report, tiny
from vit_jax import config
from vit_jax.preflight import batch

WHERE = types.SimpleNamespace(name="v3-8")


def measure_all(monkeypatch, runs, *, fit=False, output=None, teachers=None):
    asked, said = [], []

    def measure(cfg, where, examples, teacher=None):
        asked.append((cfg.name, where.name, examples, teacher))
        return create_report(name=cfg.name)

    def search(cfg, where, examples, *, loops, say, compile_):
        assert loops
        return compile_(cfg, where, examples)

    monkeypatch.setattr(batch, "measure", measure)
    monkeypatch.setattr(batch.search, "fit_batch", search)
    reports = list(batch.measure_all(runs, [WHERE], fit=fit, loops=True, output=output,
                                     say=said.append, teachers=teachers))  # fmt: skip
    return reports, asked, said


@pytest.mark.parametrize("fit", [False, True])
def test_a_student_is_compiled_with_its_teacher(fit, monkeypatch):
    objective = {"name": "distillation", "teacher": "big"}
    student, plain = tiny(objective=objective), tiny(train={"batch_size": 16})
    teacher = config.Config()
    _, asked, said = measure_all(
        monkeypatch, [(student, 9), (plain, 7)], fit=fit, teachers={"big": teacher}
    )
    assert [one[2:] for one in asked] == [(9, teacher), (7, None)]
    assert said == [f"{student.name} on v3-8", f"{plain.name} on v3-8"]
    _, asked, _ = measure_all(monkeypatch, [(student, 9)], fit=fit)
    assert [one[2:] for one in asked] == [(9, None)]


def test_what_is_in_the_file_is_not_compiled_again(monkeypatch, tmp_path):
    run = [(tiny(), 1437)]
    first, asked, _ = measure_all(monkeypatch, run, output=tmp_path / "known.jsonl")
    again, none, said = measure_all(monkeypatch, run, output=tmp_path / "known.jsonl")
    assert (len(asked), none, said) == (1, [], [])
    assert [one.peak for one in again] == [one.peak for one in first]
    monkeypatch.setattr(batch, "_version", {"jax": "99", "libtpu": None}.get)
    _, newer, _ = measure_all(monkeypatch, run, output=tmp_path / "known.jsonl")
    _, kept, _ = measure_all(monkeypatch, run, output=tmp_path / "known.jsonl")
    assert (len(newer), kept) == (1, [])


def test_a_teacher_of_the_same_name_is_compiled_again(monkeypatch, tmp_path):
    run = [(tiny(objective={"name": "distillation", "teacher": "big"}), 200)]
    every = []
    for depth in (1, 2, 1):
        teachers = {"big": config.build({"model": {"depth": depth}})}
        options = {"output": tmp_path / "known.jsonl", "teachers": teachers}
        every.append(len(measure_all(monkeypatch, run, **options)[1]))
    assert every == [1, 1, 0]


def test_a_file_that_cannot_be_read_or_holds_something_else(tmp_path, monkeypatch):
    file = tmp_path / "known.jsonl"
    file.write_text('{"key": 1}\n')
    with pytest.raises(
        config.ConfigError, match="line 1 is not a report of preflight; name another"
    ):
        batch.read_reports(file)
    monkeypatch.setattr(batch.storage, "read_lines", Mock(side_effect=OSError(5, "broken disk")))
    with pytest.raises(config.ConfigError, match=f"^--output={file}: .*broken disk$"):
        batch.read_reports(file)
    assert batch.read_reports(None) == {}
