"""Names of tables and figures, shared by `list`, `preflight` and `reproduce`.

A name is `table5` or `figure8`. The paper's other labels are accepted too, in any spelling: `5`,
`Table 5`, `fig. 8`, `D.2`.
"""

import re
from collections.abc import Iterable

from vit_jax import config

OTHERS = ("augreg", "baseline", "deit", "deit3", "mae", "dino")  # of other papers
# Each name with the labels that its configs may list in `About.tables`.
EXHIBITS = {
    "table2": ("2",),
    "table3": ("3",),
    "table4": ("4",),
    "table5": ("5",),
    "table6": ("6",),
    "table7": ("7",),
    "table8": ("8", "D.4"),
    "table9": ("9", "D.10"),
    "figure2": ("figure 2",),
    "figure3": ("figure 3",),
    "figure4": ("figure 4",),
    "figure5": ("figure 5",),
    "figure8": ("figure 8", "D.2"),
    "figure9": ("figure 9", "D.3"),
    "figure10": ("figure 10",),
    "figure13": ("figure 13", "D.6"),
    "masked": ("section 4.6",),
    "home": ("home",),
    **{name: (name,) for name in OTHERS},
}
DRAWN_FROM = {"figure5": "table6"}  # the same runs
# Names without a measurement in `reproduce`, and the alternative.
UNMEASURED = {
    "table3": "its columns are settings; tables 5 to 7 measure its runs",
    "figure10": "it is a picture: `vit_jax inspect posemb` draws it of each of its runs",
    **dict.fromkeys(OTHERS, "its runs are those of another paper"),
}
# Exhibits without configs, with the command that makes them.
MADE_BY = {
    "table1": "it has the sizes of the models; `vit_jax list` shows each run's",
    "figure1": "it is a drawing of the model",
    "figure6": "`vit_jax inspect rollout` draws it of a checkpoint",
    "figure7": "`vit_jax inspect filters`, `posemb` and `attention-distance` draw its three parts",
    "figure11": "`vit_jax inspect attention-distance` draws it of a checkpoint",
    "figure12": "`vit_jax bench infer` measures it",
    "figure14": "`vit_jax inspect rollout` draws it of a checkpoint",
}
MEASURED = tuple(name for name in EXHIBITS if name not in UNMEASURED)


def find_table(typed: str, where: str) -> str:
    """The canonical name of a table or figure that the user typed.

    `where` is the option named in the error, such as `--table=`.

    Raises ConfigError with the nearest name and all names with their other labels.
    """
    known = {_key(label): name for name, labels in EXHIBITS.items() for label in (name, *labels)}
    if _key(typed) in known:
        return known[_key(typed)]
    made = {_key(name): why for name, why in MADE_BY.items()}
    if _key(typed) in made:
        raise config.ConfigError(f"{where}{typed}: has no configs; {made[_key(typed)]}")
    hint = config.suggest(typed.lower(), list(EXHIBITS))
    near = hint if "did you mean" in hint else ""
    raise config.ConfigError(
        f"{where}{typed}: no such table or figure{near}; known: {', '.join(map(_shown, EXHIBITS))}"
    )


def measured(typed: str) -> str:
    """The name of a table or figure that can be reproduced; raises ConfigError."""
    name = find_table(typed, "reproduce ")
    if name in UNMEASURED:
        raise config.ConfigError(
            f"reproduce {typed}: {UNMEASURED[name]}; `vit_jax list --table={name}` lists them; "
            f"to reproduce: {', '.join(MEASURED)}"
        )
    return name


def containing(labels: Iterable[str], config_name: str) -> set[str]:
    """The tables and figures that contain a config.

    `labels` are its `About.tables`; home/ and masked/ belong to the tables of that name.
    """
    every = {*labels, config_name.partition("/")[0]}
    found = {name for name, known in EXHIBITS.items() if every & {name, *known}}
    return found | {name for name, source in DRAWN_FROM.items() if source in found}


def _key(typed: str) -> str:
    """Normalizes a name's spelling: `Table D.2` becomes `d2`."""
    letters = re.sub(r"[^a-z0-9]", "", typed.lower())
    letters = re.sub(r"^(table|section|appendix)(?=[a-z]?[0-9])", "", letters)
    # This word stays, as Figure 5 and Table 5 differ.
    return re.sub(r"^fig(ure)?(?=[0-9])", "figure", letters)


def _shown(name: str) -> str:
    also = [label for label in EXHIBITS[name] if re.match(r"[A-Z]\.|section", label)]
    return f"{name} ({', '.join(also)})" if also else name
