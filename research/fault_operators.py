"""Small faults of source text: where they can be made, and making them."""

import ast
import copy
import dataclasses
import functools
import textwrap
from collections.abc import Iterator
from typing import Any

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift,
}  # fmt: skip
MESSAGES = ("debug", "info", "warning", "error", "say", "_say", "warn")


@dataclasses.dataclass(frozen=True)
class Fault:
    """A change of some lines of a function.

    Attributes:
      file: relative to the repository.
      function: qualified name; empty for the module's own statements.
      operator: the kind of change.
      before: the lines, without what they are indented together.
      after: what stands there instead.
      nth: which of several such places in the function, from 0.
    """

    file: str
    function: str
    operator: str
    before: str
    after: str
    nth: int = 0

    def applied(self, text: str) -> str:
        """The file's text with this fault; raises ValueError where it no longer fits."""
        lines = text.splitlines()
        low, high = _range(_parsed(text), self.function, len(lines))
        count, top = self.before.count("\n") + 1, self.before.partition("\n")[0].lstrip()
        places = [
            start
            for start in range(low, high - count + 1)
            if lines[start].lstrip() == top  # which alone is quick
            and textwrap.dedent("\n".join(lines[start : start + count])) == self.before
        ]
        if len(places) <= self.nth:
            raise ValueError(f"{self.file}: {self.function}: no line {self.before!r}")
        start = places[self.nth]
        indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
        first = self.before[: len(self.before) - len(self.before.lstrip())]
        new = textwrap.indent(self.after, indent.removesuffix(first)).splitlines()
        changed = lines[:start] + new + lines[start + count :]
        first, end = _statement(_parsed(text), start, start + count, lines)
        if _dumped(changed[first : end + len(new) - count]) == _dumped(lines[first:end]):
            raise ValueError(f"{self.file}: {self.function}: {self.after!r} changes nothing")
        return "\n".join(changed) + "\n"


@functools.lru_cache(4)
def _parsed(text):
    return ast.parse(text)


def _statement(tree, start, stop, lines):
    """The lines of the innermost statement around some lines; without one, all."""
    found, node = (0, len(lines)), tree
    while node:
        inside = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
        around = (s for s in inside if s.lineno <= start + 1 and stop <= (s.end_lineno or 0))
        node = next(around, None)
        if node is None or lines[node.lineno - 1].lstrip().startswith("elif "):
            break  # an `elif` cannot be parsed alone
        found = node.lineno - 1, node.end_lineno or node.lineno
    return found


def _dumped(lines):
    head = "if True:\n" if lines[0][:1] == " " else ""
    return ast.dump(ast.parse(head + "\n".join(lines)))


@functools.lru_cache(4)
def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions of a module by qualified name, without `<locals>`."""
    found = {}

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}".lstrip(".")
                if isinstance(child, ast.FunctionDef):
                    found.setdefault(name, child)
            if not isinstance(child, ast.expr):  # no function is defined inside one
                visit(child, name)

    visit(tree, "")
    return found


def _range(tree, function, length):
    if not function:
        return 0, length
    node = functions(tree).get(function)
    if node is None:
        raise ValueError(f"there is no function {function}")
    return node.lineno - 1, node.end_lineno or node.lineno


def generate(file: str, text: str) -> Iterator[Fault]:
    """Yields every fault of the operators in functions: not in annotations or messages."""
    tree, lines = _parsed(text), text.splitlines()
    for name, function in functions(tree).items():
        for node in _nodes(function):
            for operator, new in _changes(node):
                place = node.test if operator == "condition negated" else node
                low, high = place.lineno - 1, place.end_lineno
                head = lines[low].encode()[: place.col_offset].decode()
                tail = lines[high - 1].encode()[place.end_col_offset :].decode()
                before = textwrap.dedent("\n".join(lines[low:high]))
                indent = len(lines[low]) - len(lines[low].lstrip())
                if before.splitlines()[0][:1] == " ":
                    continue  # continued lines indented less: a text of several lines
                after = f"{head[indent:]}{new}{tail}"
                start, stop = _range(tree, name, len(lines))
                count = high - low
                same = [
                    at
                    for at in range(start, stop - count + 1)
                    if textwrap.dedent("\n".join(lines[at : at + count])) == before
                ]
                fault = Fault(file, name, operator, before, after, same.index(low))
                try:
                    fault.applied(text)
                except (SyntaxError, ValueError):
                    continue  # such as an assignment in a condition, or a name's own value
                yield fault


def _nodes(function) -> Iterator[Any]:
    """Yields the nodes of a function where a fault makes sense, without those of its functions."""
    waiting = list(function.body) + list(function.args.defaults)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.JoinedStr | ast.Assert):
            continue
        if isinstance(node, ast.Call) and _name(node.func) in MESSAGES:
            continue
        if hasattr(node, "lineno"):
            yield node
        if isinstance(node, ast.Raise):
            continue  # its message
        if isinstance(node, ast.AnnAssign):
            waiting += [node.value] if node.value else []
        else:
            waiting += list(ast.iter_child_nodes(node))


def _name(node):
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _changes(node):
    """Yields (operator, new text) of a node."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield "comparison", _text(node, ops=[COMPARISONS[type(op)]()])
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield "arithmetic", f"({_text(node, op=ARITHMETIC[type(op)]())})"
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "boolean", f"({_text(node, op=other)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", f"({ast.unparse(operand)})"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "sign", ast.unparse(operand)
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int(value)):
            yield "constant", str(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", repr(2 * value or 1.0)
        case ast.Call(func=func, args=args, keywords=keywords):
            if len(args) >= 2 and not isinstance(args[0], ast.Starred):
                yield "arguments swapped", _text(node, args=[args[1], args[0], *args[2:]])
            for index, keyword in enumerate(keywords):
                if keyword.arg and _name(func) != "field":
                    left = keywords[:index] + keywords[index + 1 :]
                    yield "keyword dropped", _text(node, keywords=left)
        case ast.Expr(value=ast.Call(func=func)) if _name(func) not in MESSAGES:
            yield "statement deleted", "pass"
        case ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            yield "statement deleted", "pass"
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "statement deleted", "pass"
        case ast.IfExp(test=test) | ast.If(test=test):
            yield "condition negated", f"not ({ast.unparse(test)})"
        case ast.Return(value=ast.Constant() | ast.Name() as value) if _name(value):
            yield "returns None", "return None"


def _text(node, **fields):
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return ast.unparse(ast.fix_missing_locations(changed))
