"""What determines the result of a cell, and the weights that it begins with."""

from vit_jax import config
from vit_jax.studies.cells import Cell

FIRST = Cell(directory="first/run", cfg=config.Config(seed=3))


def test_a_cell_begins_with_the_weights_of_its_origin(tmp_path):
    cell = Cell(directory="then", cfg=config.Config(seed=4), origin=FIRST)
    assert cell.in_workdir(tmp_path).init_from == str(tmp_path / "first/run")
    assert cell.in_workdir(tmp_path).seed == 4
    assert FIRST.in_workdir(tmp_path) == FIRST.cfg


def test_the_digest_covers_config_origin_and_measurements_but_not_the_place():
    def digest(seed=3, **changes):
        return Cell(directory="elsewhere", cfg=config.Config(seed=seed), **changes).digest

    assert digest() == FIRST.digest
    others = {digest(seed=4), digest(origin=FIRST), digest(measurements=({"kind": "fewshot"},))}
    assert len(others | {FIRST.digest}) == 4
    assert len(FIRST.digest) == 16
    one, two = {"kind": "fewshot", "options": []}, {"options": [], "kind": "fewshot"}
    assert digest(measurements=(one,)) == digest(measurements=(two,))
