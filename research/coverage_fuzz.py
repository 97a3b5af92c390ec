"""Coverage-guided fuzzing of the readers of hostile.py, with atheris (libFuzzer).

    pip install atheris
    python -m research.coverage_fuzz --seconds=60 [READER ...]

Each reader runs in a process of its own, whose modules of vit_jax tell libFuzzer which branches an
input has reached; it begins with sound files. An error other than the reader's own, an import, a
started program, more than 5 s for one input or more than 4 GiB of memory ends it, and the input is
kept in build/fuzz. Inputs that reach something new are kept there too, so that another run goes on
from them. Prints a table; exit code 1 if anything was found.
"""

import argparse
import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile

WORK = pathlib.Path(__file__).resolve().parents[1] / "build/fuzz"
COLUMNS = ("reader", "inputs", "branches of sound files", "branches", "found", "s")


def fuzz(name, arguments):
    """Gives one reader inputs until libFuzzer ends this process."""
    import atheris

    with atheris.instrument_imports(include=["vit_jax"]):  # pyright: ignore
        import hostile

        contents, read = hostile.READERS[name]()
        allowed = hostile.FOREIGN.get(name, ())
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"fuzz_{name}_"))
        for content in contents:  # which imports all that is needed
            with contextlib.suppress(Exception):
                read(content, folder)
    corpus = pathlib.Path(arguments[-1])
    for number, content in enumerate(contents):
        (corpus / f"sound{number}").write_bytes(content)

    def attempt(data):
        hostile.attempt(read, data, folder, allowed)

    atheris.Setup([sys.argv[0], *arguments], attempt)
    atheris.Fuzz()


def row(name, seconds):
    """A reader's line of the table, and what was found."""
    corpus, artifacts = WORK / "corpus" / name, WORK / "found" / name
    for place in (corpus, artifacts):
        place.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "research.coverage_fuzz", f"--reader={name}",
        f"-max_total_time={seconds}",
        "-timeout=5", "-rss_limit_mb=4096", "-max_len=65536", "-print_final_stats=1",
        f"-artifact_prefix={artifacts}/", str(corpus),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    output = result.stderr + result.stdout
    branches = [int(one) for one in re.findall(r"cov: (\d+)", output)]
    inputs = re.search(r"stat::number_of_executed_units:\s+(\d+)", output)
    spent = re.search(r"Done \d+ runs in (\d+) second", output)
    found = "" if result.returncode == 0 else output[-3000:]
    cells = (
        name, inputs.group(1) if inputs else "?", branches[0] if branches else "?",
        branches[-1] if branches else "?", int(bool(found)), spent.group(1) if spent else "?",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |", found


def main():
    """Fuzzes readers, one after another, and prints the table."""
    if len(sys.argv) > 1 and sys.argv[1].startswith("--reader="):
        return fuzz(sys.argv[1].partition("=")[2], sys.argv[2:])
    import hostile

    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("readers", nargs="*", default=list(hostile.READERS))
    parser.add_argument("--seconds", type=int, default=60, help="for each reader")
    options = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{len(COLUMNS) * '---|'}")
    problems = []
    for name in options.readers:
        line, found = row(name, options.seconds)
        print(line, flush=True)
        problems += [f"{name}: {found}"] if found else []
    print(*problems, sep="\n", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
