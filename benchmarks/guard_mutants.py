"""Mutations of guards in Python source: a guard dropped, a comparison weakened, an operand dropped, a bound changed.

A guard is an `if` whose only statement returns, raises, continues or breaks. Comparisons and operands are those of any
condition; assertions are left out, since they state what always holds, and so is code outside of functions.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

FACTOR = 100  # by which a bound is changed
_EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_NEVER = (ast.NotEq, ast.IsNot, ast.NotIn)  # become False
_ALWAYS = (ast.Eq, ast.Is, ast.In)  # become True
_BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_CONDITIONAL = (ast.If, ast.IfExp, ast.While, ast.comprehension, ast.Return, ast.UnaryOp, ast.BoolOp, ast.Compare)
HIT = "__guard_hit__"  # called before each statement that holds a mutation, while covering tests are recorded


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one syntax tree."""

    function: str  # qualified name; empty for a constant of the module
    line: int
    statement: str  # which statement holds it, unique in the file
    kind: str
    text: str  # what was changed
    name: str  # of the changed constant, or empty
    plant: Callable[[], object]  # changes the tree


def mutations(tree: ast.Module) -> list[Mutation]:
    """Every mutation of a file, in the order of its lines."""
    seen: Counter[str] = Counter()
    found: list[Mutation] = []
    for statement, function in _statements(tree):
        if function:
            label = _label(statement, function, seen)
            found += (m for m in _of_statement(statement, function, label))
    for constant in tree.body:
        found += _of_constant(constant)
    return found


def instrument(tree: ast.Module) -> None:
    """Call `HIT` with the label of each statement that holds a mutation, before it."""
    labels: dict[int, str] = {}
    seen: Counter[str] = Counter()
    for statement, function in _statements(tree):
        if function:
            label = _label(statement, function, seen)
            labels[id(statement)] = label
    for parent in list(ast.walk(tree)):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            if isinstance(block, list):
                setattr(parent, field, [each for s in block for each in _with_hit(s, labels)])
    ast.fix_missing_locations(tree)


def mentions(tree: ast.Module, name: str) -> Iterator[str]:
    """The labels of the statements that read a name."""
    seen: Counter[str] = Counter()
    for statement, function in _statements(tree):
        if function:
            label = _label(statement, function, seen)
            if any(isinstance(part, ast.Name) and part.id == name for part, *_ in _parts(statement)):
                yield label


def _with_hit(statement: ast.stmt, labels: dict[int, str]) -> tuple[ast.stmt, ...]:
    label = labels.get(id(statement))
    if label is None:
        return (statement,)
    call = ast.Call(ast.Name(HIT, ast.Load()), [ast.Constant(label)], [])
    return (ast.copy_location(ast.Expr(call), statement), statement)


def _statements(node: ast.AST, prefix: str = "", function: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """Every statement below a node with its function, except definitions, assertions and docstrings."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            name = f"{prefix}{child.name}"
            inside = isinstance(child, ast.FunctionDef)
            yield from _statements(child, f"{name}.", name if inside else "")
        elif isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            if isinstance(child, (ast.Assert, ast.Import, ast.ImportFrom)):
                continue
            if isinstance(child, ast.stmt) and not (
                isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            ):
                yield child, function
            yield from _statements(child, prefix, function)


def _label(statement: ast.stmt, function: str, seen: Counter[str]) -> str:
    text = f"{function}: {ast.unparse(statement).splitlines()[0]}"
    seen[text] += 1
    return text if seen[text] == 1 else f"{text} ({seen[text]})"


def _parts(statement: ast.stmt) -> Iterator[tuple[ast.AST, ast.AST, Callable[[ast.expr], None]]]:
    """The expressions of a statement itself, without those of the statements inside it: part, parent, replacement."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(child, ast.AST) and not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                    yield child, node, partial(_put, node, field, index)
                    todo.append(child)


def _put(node: ast.AST, field: str, index: int | None, new: ast.expr) -> None:
    if index is None:
        setattr(node, field, new)
    else:
        getattr(node, field)[index] = new


def _of_statement(statement: ast.stmt, function: str, label: str) -> Iterator[Mutation]:
    def mutation(kind: str, node: ast.AST, text: str, plant: Callable[[], object]) -> Mutation:
        return Mutation(function, getattr(node, "lineno", statement.lineno), label, kind, text, "", plant)

    if isinstance(statement, ast.If) and len(statement.body) == 1 and isinstance(statement.body[0], _EXITS):
        test = statement.test
        text = ast.unparse(test)
        yield mutation("guard dropped", statement, text, partial(setattr, statement, "test", _always(False, test)))
        inverted = ast.UnaryOp(ast.Not(), test)
        yield mutation("guard inverted", statement, text, partial(setattr, statement, "test", inverted))
    for part, parent, put in _parts(statement):
        if isinstance(part, ast.Compare):
            yield from _of_comparison(part, parent, put, mutation)
        elif isinstance(part, ast.BoolOp) and isinstance(parent, _CONDITIONAL) and _decides(part, parent):
            for index, operand in enumerate(part.values):
                word = "and" if isinstance(part.op, ast.And) else "or"
                plant = partial(part.values.__setitem__, index, _always(word == "and", operand))
                yield mutation("operand dropped", operand, f"{word} {ast.unparse(operand)}", plant)


def _decides(part: ast.BoolOp, parent: ast.AST) -> bool:
    """Whether and/or gives a truth value, as opposed to a default."""
    if isinstance(parent, (ast.If, ast.While)):
        return True
    return all(isinstance(each, (ast.Compare, ast.UnaryOp, ast.BoolOp, ast.Call)) for each in part.values)


def _of_comparison(
    part: ast.Compare, parent: ast.AST, put: Callable[[ast.expr], None], mutation: Callable[..., Mutation]
) -> Iterator[Mutation]:
    text = ast.unparse(part)
    for index, operator in enumerate(part.ops):
        if type(operator) in _BOUNDARY:
            operators = [*part.ops]
            operators[index] = _BOUNDARY[type(operator)]()
            yield mutation("boundary moved", part, text, partial(setattr, part, "ops", operators))
    for index, number in enumerate(part.comparators):
        if isinstance(number, ast.Constant) and isinstance(number.value, float) and number.value:
            for word, new in (("×", number.value * FACTOR), ("÷", number.value / FACTOR)):
                plant = partial(part.comparators.__setitem__, index, ast.Constant(new))
                yield mutation(f"bound {word} {FACTOR}", part, text, plant)
    if len(part.ops) == 1 and isinstance(part.ops[0], (*_NEVER, *_ALWAYS)):
        result = isinstance(part.ops[0], _ALWAYS)
        whole = isinstance(parent, ast.If) and not result
        if not whole and not (isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And) == result):
            yield mutation("comparison dropped", part, text, partial(put, _always(result, part)))


def _always(result: bool, condition: ast.expr) -> ast.expr:
    """A constant in place of a condition, which is still computed if it names a value."""
    if not any(isinstance(part, ast.NamedExpr) for part in ast.walk(condition)):
        return ast.Constant(result)
    return ast.Subscript(ast.Tuple([condition, ast.Constant(result)], ast.Load()), ast.Constant(1), ast.Load())


def _of_constant(statement: ast.stmt) -> Iterator[Mutation]:
    """A number in capitals at the top of a module, larger and smaller by `FACTOR`."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target, value = statement.target, statement.value
    else:
        return
    if isinstance(target, ast.Name) and target.id.lstrip("_").isupper() and _is_number(value):
        for word in "×÷":
            text = ast.unparse(statement)
            yield Mutation("", statement.lineno, "", f"bound {word} {FACTOR}", text, target.id, lambda: None)


def _is_number(value: ast.expr) -> bool:
    """Whether an expression is of numbers alone; 0 and 1 times a hundred are other things than bounds."""
    for part in ast.walk(value):
        if isinstance(part, ast.Constant) and (isinstance(part.value, bool) or not isinstance(part.value, int | float)):
            return False
        if not isinstance(part, (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)):
            return False
    return not (isinstance(value, ast.Constant) and value.value in (0, 1))
