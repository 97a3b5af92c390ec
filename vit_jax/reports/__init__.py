"""Reports: what a person looks at after a run."""
