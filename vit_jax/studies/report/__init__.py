"""Reports of run and transfer directories."""

from vit_jax.studies.report.page import write_report as write_report
