"""What tests need of pages: run directories written by hand, and a reader that is strict."""

import html.parser
import json

import runs
from vit_jax import config
from vit_jax.checkpoints import record as records
from vit_jax.studies.records import sealed
from vit_jax.utils import storage

VOID = {"meta", "img", "input"}
TRANSFER = {
    "name": "finetune/ViT-B_16-i21k-cifar10", "task": "cifar10", "measure": "top1",
    "cells": [
        {"stage": "choose", "setup": "vit", "lr": 0.003, "seed": 0,
         "directory": "choose/vit-lr0.003", "state": "done", "steps": 500, "seconds": 61.0,
         "results": {"top1": 0.91, "loss": 0.31}},
        {"stage": "choose", "setup": "vit", "lr": 0.01, "seed": 0,
         "directory": "choose/vit-lr0.01", "state": "done", "steps": 500, "seconds": 62.0,
         "results": {"top1": 0.93, "loss": 0.25}},
        {"stage": "final", "setup": "vit", "lr": 0.01, "seed": 0, "directory": "final/seed0",
         "state": "done", "steps": 500, "seconds": 70.0, "results": {"top1": 0.98, "loss": 0.1}},
        {"stage": "final", "setup": "vit", "lr": 0.01, "seed": 1, "directory": "final/seed1",
         "state": "running", "steps": 500, "seconds": None, "results": {}},
    ],
    "selected": {"setup": "vit", "lr": 0.01},
    "results": {"top1": {"mean": 0.9874, "std": 0.0011, "values": [0.9862, 0.9874, 0.9886]}},
    "machine": {"device": "TPU v3", "devices": 8, "host": "tpu-0", "versions": {"jax": "0.10.2"}},
    "date": "2026-11-22",
}  # fmt: skip


class Page(html.parser.HTMLParser):
    """A page whose every element was closed in its turn; its words, elements and addresses."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.elements, self.addresses = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    @classmethod
    def read(cls, path):
        return cls(path.read_text())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.addresses += [v for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open and data.strip():
            self.words.append(data.strip())

    @property
    def text(self):
        return " ".join(self.words)

    def count(self, tag, kind=None):
        return sum(t == tag and kind in (None, a.get("class")) for t, a in self.elements)


def write_transfer(directory, **values):
    """Writes a transfer.json as a transfer would."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "transfer.json").write_text(json.dumps(sealed(TRANSFER | values)))


def write_run(directory, *, name="mine", results=None, steps=(10, 20, 25), record=True):
    """Writes a run directory as training would, all numbers by hand; returns its config."""
    cfg = config.build(config.to_dict(runs.configure()) | {"name": name})
    directory.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(directory / "config.json", json.dumps(config.to_dict(cfg)))
    lines = [
        {"step": step, "train/loss": 2.0 / step, "train/top1": step / 30, "train/lr": 1e-3,
         "speed/images_per_second": 64.0, "data/wait_share": 0.25}
        for step in steps
    ]  # fmt: skip
    if results is not None:
        lines.append({"step": steps[-1], **results})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "metrics.jsonl").write_text(text)
    if record:
        write_record(directory, steps[-1])
    return cfg


def write_record(directory, step, **more):
    """Writes the commit record of a checkpoint without arrays; `more` joins its facts."""
    folder = records.folder(directory / "checkpoints", step)
    folder.mkdir(parents=True)
    facts = {
        "examples": 200, "classes": list("0123456789"), "mesh": {"data": 4, "fsdp": 2},
        "device": "TPU v3", "host": "tpu-0", "versions": {"jax": "0.10.2"},
        **more,
    }  # fmt: skip
    names = ("params/objective/mask_token", "params/lora/head/kernel/a", "opt/0/mu")
    leaves = {"params/head/kernel": {"shape": [16, 10]}} | {name: {"shape": [99]} for name in names}
    records.write_commit(
        folder, {"step": step, "facts": facts, "metrics": {}, "best": "top1", "leaves": leaves}
    )
