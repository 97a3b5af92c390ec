"""Code blocks in the width of the site's column.

On the repository's web page a wide block scrolls; on the site it would be cut, its comments first.
"""

import re
import textwrap
from collections.abc import Iterator

WIDTH = 78  # characters of the column
FENCE = re.compile(r"^( *)```(sh|bash|python)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
TRAILING = re.compile(
    r"^(?P<code>(?=\s*[^\s#])(?:[^'\"#]|'[^']*'|\"[^\"]*\"|(?<=\S)#)*?)\s+# (?P<comment>.*)$"
)
WORD = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\"|\\.)+")


def fit(markdown: str) -> str:
    """Fits the shell and Python blocks of a page.

    Where a line of a block is too wide, all comments behind its lines go above them, and commands
    continue on further lines. Python code itself is left as it is.
    """

    def one(match: re.Match[str]) -> str:
        indent, language, text = match[1], match[2], match[3]
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        if max(map(len, lines), default=0) > WIDTH:
            lines = list(_fitted(lines, shell=language != "python"))
        body = "".join(f"{indent}{line}\n" if line else "\n" for line in lines)
        return f"{indent}```{language}\n{body}{indent}```"

    return FENCE.sub(one, markdown)


def _fitted(lines: list[str], *, shell: bool) -> Iterator[str]:
    """Yields commands or statements, each below its comments."""
    number = 0
    while number < len(lines):
        first, rows, comments = number == 0, [lines[number]], []
        while rows[-1].endswith(" \\") and number + 1 < len(lines):
            number += 1
            rows.append(lines[number])
        number += 1
        if found := TRAILING.match(rows[-1]):
            rows[-1], comments = found["code"], [found["comment"]]
            while number < len(lines) and re.match(r"\s{12,}# ", lines[number]):  # it goes on
                comments.append(lines[number].strip().removeprefix("# "))
                number += 1
        indent = rows[0][: len(rows[0]) - len(rows[0].lstrip())]
        if comments and not first:
            yield ""
        for comment in comments:
            for text in textwrap.wrap(comment, WIDTH - 2 - len(indent)):
                yield f"{indent}# {text}"
        text = " ".join(row.removesuffix("\\").strip() for row in rows)
        words = WORD.findall(text)
        sound = "".join("".join(words).split()) == "".join(text.split())  # no quote is left open
        if shell and sound and max(map(len, rows)) > WIDTH:
            yield from _broken(indent, words)
        else:
            yield from rows


def _broken(indent: str, words: list[str]) -> Iterator[str]:
    """Yields a command over several lines; an argument is never broken."""
    row = indent
    for word in words:
        if len(row) + len(word) + 3 > WIDTH and row.strip():
            yield f"{row} \\"
            row = indent = indent or "    "
        row += word if row == indent else f" {word}"
    yield row
