"""Mistakes of `vit_jax bench` in one line, before anything is measured."""

import pytest

from vit_jax import cli


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["attention", "--rounds=3"],
            "--rounds=3: is a flag of bench startup, bench input, bench infer, bench train, "
            "bench checkpoint, bench evaluate, bench dispatch only",
        ),
        (["infer", "--threads=2,3"], "--threads=2,3: is a flag of bench input only"),
        (["input", "--feed=ViT-B/32"], "--topology=SLICE go together"),
        (["input", "--feed=ViT-Q/32", "--topology=v3:2x2"], "ViT-Q/32"),
        (["input", "--feed=ViT-B/32", "--topology=v9:2x2"], "--topology=v9:2x2"),
        (["input", "--data=/gone"], "--data=/gone: no such folder or tar"),
        (["input", "--peer-python=/no/python"], "--peer-python=/no/python: does not run"),
        (["input", "--randaugment=2"], "data.randaugment=2: needs two numbers"),
        (["input", "--randaugment=2,31"], "magnitude 31 is more than 30"),
        (["input", "--peer-path=/gone"], "--peer-path=/gone: is for --randaugment"),
        (["input", "--peer-path=/gone", "--randaugment=2,10"], "/gone: no checkout of big_vision"),
        (["startup", "--peer-python=/no/python"], "--peer-python=/no/python: does not run"),
        (["startup", "--peer-python=python3"], "python3 has no torch and no timm"),
        (["startup", "--models=ViT-S/16"], "--models=ViT-S/16: is a flag of bench infer"),
        (["infer", "--models=ViT-Q/32"], "ViT-Q/32: no size Q"),
        (["infer", "--topology=v9-8"], "--topology=v9-8: no such slice"),
        (["infer", "--topology=cpu"], "--topology=cpu: name a TPU slice"),
        (["infer", "--topology=v3-8", "--rounds=2"], "--rounds=2: nothing runs"),
        (["train", "--peer=timm", "--peer-python=/no/python"], "/no/python: does not run"),
        (["train", "--peer=timm"], "has no torch and no timm: install torch timm there"),
        (["train", "--peer=big_vision"], "imported from a checkout; set --peer-path"),
        (["train", "--peer=timm", "--peer-path=/gone"], "is a package; leave out --peer-path"),
        (["train", "--peer-path=/gone"], "--peer-path=/gone: needs --peer=NAME"),
        (["train", "--peer=big_vision", "--peer-path=/gone"], "--peer-path=/gone: no checkout"),
        (
            ["train", "--peer=dino", "--peer-path=/gone", "--objective=dino"],
            "--peer-path=/gone: no checkout of dino",
        ),
        (["train", "--peer=timm", "--objective=mae"], "or --peer=transformers"),
        (["train", "--models=R50x1"], "--models=R50x1: must be a ViT"),
        (["train", "--sizes=40"], "40"),
        (["train", "--attention=fast"], "--attention=fast: must be one of explicit, xla, cudnn"),
        (["checkpoint", "--models=ViT-Q/16"], "ViT-Q/16: no size Q"),
        (["checkpoint", "--workdir=/gone"], "--workdir=/gone: no such folder"),
        (["evaluate", "--models=ViT-Q/16"], "ViT-Q/16: no size Q"),
        (["evaluate", "--sizes=40"], "40"),
        (["train", "--peer-python=/gone"], "--peer-python=/gone: needs --peer=NAME"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert cli.main(["bench", *arguments]) == 2
    # A measurement that has begun may have said so.
    *progress, line = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert len(progress) <= 1
