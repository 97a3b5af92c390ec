"""The paper's findings, re-derived at a small scale: cells, records, verdicts and a page.

`paper_findings` declares each finding before it runs: what the paper says and where, the runs to
compare (`declaration`), what would refute it. `planning` makes the cells, which findings share by
digest and vit_jax.studies runs; `verdicts` compares their records over seeds; `page` shows all.
"""

from research.findings.arms import Arms as Arms
from research.findings.page import as_dict as as_dict
from research.findings.page import blocks as blocks
from research.findings.page import write as write
from research.findings.paper_findings import declare as declare
from research.findings.paper_findings import select as select
from research.findings.planning import FindingsStudy as FindingsStudy
from research.findings.planning import check_data as check_data
from research.findings.planning import one_core_each as one_core_each
from research.findings.planning import open_records as open_records
from research.findings.scales import SCALES as SCALES
from research.findings.scales import scale as scale
from research.findings.verification import verify as verify
