"""Many runs for one answer: transfer, the paper's tables, and reports of runs."""
