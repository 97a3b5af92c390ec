"""The paper's findings, re-derived at a small scale: cells, records, verdicts and a page.

`paper_findings` declares each finding before it runs: what the paper says and where, the runs to
compare (`declaration`), what would refute it. `protocol` runs the cells, which findings share by
digest; `records` keeps one JSON line for each; `verdicts` compares them over seeds; `page` shows
all of it.
"""

from vit_jax.findings.arms import Arms
from vit_jax.findings.declaration import Claim, Figure, Finding, Line, Look, Term, Training
from vit_jax.findings.page import as_dict, blocks, write
from vit_jax.findings.paper_findings import declare, select
from vit_jax.findings.planning import Study
from vit_jax.findings.protocol import check_data, perform, places
from vit_jax.findings.records import Records
from vit_jax.findings.scales import SCALES, scale
from vit_jax.findings.verification import verify

__all__ = [
    "SCALES",
    "Arms",
    "Claim",
    "Figure",
    "Finding",
    "Line",
    "Look",
    "Records",
    "Study",
    "Term",
    "Training",
    "as_dict",
    "blocks",
    "check_data",
    "declare",
    "perform",
    "places",
    "scale",
    "select",
    "verify",
    "write",
]
