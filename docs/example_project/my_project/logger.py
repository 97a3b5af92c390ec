"""A logger: `--config.logging.loggers.csv.metric=train/loss`."""

import vit_jax


@vit_jax.register("logger", "csv")
class Csv:
    """Writes one metric to a file of its own in the run directory."""

    def __init__(self, directory, metric: str = "train/loss"):
        self.metric = metric
        self.file = (directory / f"{metric.replace('/', '_')}.csv").open("a", encoding="utf-8")

    def write(self, step, values):
        """Takes the numbers of a step; a resumed run repeats those after its checkpoint."""
        if self.metric in values:
            self.file.write(f"{step},{values[self.metric]}\n")
            self.file.flush()

    def close(self):
        """Closes the file."""
        self.file.close()
