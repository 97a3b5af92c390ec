"""The paper's findings, re-derived at a small scale: cells, records, verdicts and a page.

`paper_findings` declares each finding before it runs: what the paper says and where, the runs to
compare (`declaration`), what would refute it. `planning` makes the cells, which findings share by
digest and vit_jax.studies runs; `verdicts` compares their records over seeds; `page` shows all.
"""

from research.findings.arms import Arms
from research.findings.page import as_dict, blocks, write
from research.findings.paper_findings import declare, select
from research.findings.planning import FindingsStudy, check_data, one_core_each, open_records
from research.findings.scales import SCALES, scale
from research.findings.verification import verify

__all__ = [
    "SCALES",
    "Arms",
    "FindingsStudy",
    "as_dict",
    "blocks",
    "check_data",
    "declare",
    "one_core_each",
    "open_records",
    "scale",
    "select",
    "verify",
    "write",
]
