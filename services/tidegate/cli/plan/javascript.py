"""Translates pure Python functions to JavaScript, so that the page computes with the planner's own formulas.

It supports the constructs of the planner: frozen structs, functions of numbers, comprehensions, ``match`` on structs,
f-strings and ``raise``. Anything else is refused with its line. The output contains the definitions that the roots
need, under their Python names. ``py`` in ``runtime.js`` replaces Python's library.
"""

import ast
import json
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from tidegate.cli.plan.needed_code import Definition, NeededCode, fields_of, is_type, name_of, parameters_of

RESERVED = {"new", "default", "function", "delete", "var", "case", "this", "typeof", "switch"}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "===", ast.NotEq: "!==",
    ast.Is: "===", ast.IsNot: "!==",
}  # fmt: skip
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Mod: "%", ast.Pow: "**",
}  # fmt: skip
# Keywords of checks that the translation does not need.
CHECKS = {"strict"}


def translate(modules: Iterable[ModuleType], roots: Iterable[str]) -> str:
    """JavaScript of ``roots`` and of everything they use, as declarations.

    Raises:
        NotImplementedError: a construct is not supported; the message names the line.
    """
    program = NeededCode()
    for module in modules:
        program.add(module)
    for root in roots:
        program.require(root)
    writer = _Writer(program)
    wanted = [(name, node) for name, node in program.definitions.items() if name in program.needed]
    order = {ast.ClassDef: 0, ast.Assign: 1, ast.AnnAssign: 1, ast.FunctionDef: 2}
    wanted.sort(key=lambda pair: order[type(pair[1])])
    return "\n".join(filter(None, (writer.definition(name, node) for name, node in wanted)))


class _Writer:
    def __init__(self, program: NeededCode) -> None:
        self._program = program

    def definition(self, name: str, node: Definition) -> str:
        match node:
            case ast.ClassDef():
                return self._struct(node)
            case ast.FunctionDef():
                return f"function {_signature(self, node, skip=0)} {{\n{self._body(node)}\n}}"
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                return "" if is_type(node) else f"const {name} = {self.expression(value)};"
            case _:
                raise _unknown(node)

    def _struct(self, node: ast.ClassDef) -> str:
        fields = [
            each.target.id + (f" = {self.expression(each.value)}" if each.value is not None else "")
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        lines = [
            f"class {node.name} {{",
            f"constructor({{{', '.join(fields)}}} = {{}}) {{",
            *(f"this.{name} = {name};" for name in fields_of(node)),
            "}",
        ]
        for method in self._program.methods(node.name):
            if any(name_of(each) == "property" for each in method.decorator_list):
                once = f'py.once(this, "{method.name}", () => {{\n{self._body(method)}\n}})'
                lines.append(f"get {method.name}() {{ return {once}; }}")
            else:
                lines.append(f"{_signature(self, method, skip=1)} {{\n{self._body(method)}\n}}")
        return "\n".join([*lines, "}"])

    def _body(self, node: ast.FunctionDef) -> str:
        assigned = {
            _safe(name.id)
            for each in ast.walk(node)
            if isinstance(each, ast.Assign | ast.AnnAssign)
            for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
            for name in ast.walk(target)
            if isinstance(name, ast.Name)
        }
        declared = sorted(assigned - {_safe(name) for name in parameters_of(node)})
        head = [f"let {', '.join(declared)};"] if declared else []
        return "\n".join([*head, *map(self.statement, node.body)])

    def _block(self, nodes: list[ast.stmt]) -> str:
        return "{\n" + "\n".join(map(self.statement, nodes)) + "\n}"

    def statement(self, node: ast.stmt) -> str:
        match node:
            case ast.Expr(value=ast.Constant()):
                return ""
            case ast.Expr(value=value):
                return f"{self.expression(value)};"
            case ast.Return(value=value):
                return f"return {self.expression(value)};" if value is not None else "return null;"
            case ast.Assign(targets=[target], value=value):
                return f"{self.pattern(target)} = {self.expression(value)};"
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                return f"{self.pattern(target)} = {self.expression(value)};"
            case ast.AugAssign(target=target, op=ast.Add(), value=ast.ListComp() | ast.List() as value):
                return f"{self.expression(target)}.push(...{self.expression(value)});"
            case ast.AugAssign(target=target, op=op, value=value) if type(op) in OPERATORS:
                return f"{self.expression(target)} {OPERATORS[type(op)]}= {self.expression(value)};"
            case ast.For(target=target, iter=source, body=body, orelse=[]):
                return f"for (let {self.pattern(target)} of py.iter({self.expression(source)})) {self._block(body)}"
            case ast.If(test=test, body=body, orelse=orelse):
                tail = f" else {self._block(orelse)}" if orelse else ""
                return f"if ({self.test(test)}) {self._block(body)}{tail}"
            case ast.Match(subject=subject, cases=cases):
                return self._match(self.expression(subject), cases)
            case ast.Raise(exc=ast.Call(args=[what, *_])):
                return f"throw new Error({self.expression(what)});"
            case _:
                raise _unknown(node)

    def _match(self, subject: str, cases: list[ast.match_case]) -> str:
        parts: list[str] = []
        for case in cases:
            bound = case.pattern if isinstance(case.pattern, ast.MatchClass) else None
            names = [
                f"let {_safe(pattern.name)} = {subject}.{attribute};"
                for attribute, pattern in zip(bound.kwd_attrs, bound.kwd_patterns, strict=True)
                if isinstance(pattern, ast.MatchAs) and pattern.name is not None
            ] if bound is not None else []  # fmt: skip
            body = "\n".join([*names, *map(self.statement, case.body)])
            parts.append(f"if ({self._matches(subject, case.pattern)}) {{\n{body}\n}}")
        return " else ".join(parts)

    def _matches(self, subject: str, pattern: ast.pattern) -> str:
        match pattern:
            case ast.MatchAs(pattern=None):
                return "true"
            case ast.MatchValue(value=value):
                return f"{subject} === {self.expression(value)}"
            case ast.MatchOr(patterns=patterns):
                return " || ".join(self._matches(subject, each) for each in patterns)
            case ast.MatchClass(cls=kind):
                return f"{subject} instanceof {self.expression(kind)}"
            case _:
                raise _unknown(pattern)

    def pattern(self, node: ast.expr) -> str:
        """A target of an assignment or a loop; ignored parts get unique names."""
        if isinstance(node, ast.Tuple):
            return f"[{', '.join(self.pattern(each) for each in node.elts)}]"
        if isinstance(node, ast.Name) and node.id == "_":
            return f"_{node.lineno}_{node.col_offset}"
        return self.expression(node)

    def test(self, node: ast.expr) -> str:
        """A condition: an empty list is false."""
        match node:
            case ast.BoolOp(op=op, values=values):
                return f"({(' && ' if isinstance(op, ast.And) else ' || ').join(map(self.test, values))})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"!{self.test(operand)}"
            case ast.Compare():
                return self.expression(node)
            case _:
                return f"py.truth({self.expression(node)})"

    def expression(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=value):
                return _constant(value)
            case ast.Name(id=name):
                return "this" if name == "self" else _safe(name)
            case ast.Attribute(value=ast.Name(id="math"), attr=name):
                return f"py.math.{name}"
            case ast.Attribute(value=value, attr=name):
                return f"{self.expression(value)}.{name}"
            case ast.Subscript(value=value, slice=ast.UnaryOp(op=ast.USub(), operand=index)):
                return f"{self.expression(value)}.at(-{self.expression(index)})"
            case ast.Subscript(value=value, slice=index) if not isinstance(index, ast.Slice):
                return f"{self.expression(value)}[{self.expression(index)}]"
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"(-{self.expression(operand)})"
            case ast.UnaryOp(op=ast.Not()) | ast.BoolOp():
                return self.test(node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return f"({self.expression(left)} {OPERATORS[type(op)]} {self.expression(right)})"
            case ast.Compare():
                return self._comparison(node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return f"({self.test(test)} ? {self.expression(body)} : {self.expression(orelse)})"
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return f"[{', '.join(map(self.expression, parts))}]"
            case ast.Set(elts=parts):
                return f"new Set([{', '.join(map(self.expression, parts))}])"
            case ast.Starred(value=value):
                return f"...py.iter({self.expression(value)})"
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                entries = [
                    f"[{self.expression(key)}]: {self.expression(value)}" for key, value in pairs if key
                ]
                return f"({{{', '.join(entries)}}})"
            case ast.Lambda(args=arguments, body=body):
                return (
                    f"(({', '.join(_safe(each.arg) for each in arguments.args)}) => {self.expression(body)})"
                )
            case ast.GeneratorExp(elt=part, generators=[loop]) | ast.ListComp(elt=part, generators=[loop]):
                return self._comprehension(part, loop)
            case ast.JoinedStr(values=values):
                return f"`{''.join(map(self._text, values))}`"
            case ast.Call():
                return self._call(node)
            case _:
                raise _unknown(node)

    def _comparison(self, node: ast.Compare) -> str:
        sides = [node.left, *node.comparators]
        parts: list[str] = []
        for left, op, right in zip(sides[:-1], node.ops, sides[1:], strict=True):
            one, other = self.expression(left), self.expression(right)
            is_plain = isinstance(left, ast.Constant) or isinstance(right, ast.Constant)
            match op:
                case ast.In():
                    parts.append(f"py.has({other}, {one})")
                case ast.Eq() | ast.NotEq() if not is_plain:
                    parts.append(f"{'' if isinstance(op, ast.Eq) else '!'}py.equal({one}, {other})")
                case ast.Lt() if isinstance(left, ast.Name) and isinstance(right, ast.Name):
                    parts.append(f"py.less({one}, {other})")  # may be tuples
                case _ if type(op) in COMPARISONS:
                    parts.append(f"{one} {COMPARISONS[type(op)]} {other}")
                case _:
                    raise _unknown(node)
        return f"({' && '.join(parts)})"

    def _comprehension(self, part: ast.expr, loop: ast.comprehension) -> str:
        target = f"({self.pattern(loop.target)})"
        kept = "".join(f".filter({target} => {self.test(test)})" for test in loop.ifs)
        return f"py.iter({self.expression(loop.iter)}){kept}.map({target} => {self.expression(part)})"

    def _text(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=str() as text):
                return json.dumps(text, ensure_ascii=False)[1:-1].replace("`", "\\`").replace('\\"', '"')
            case ast.FormattedValue(value=value, format_spec=spec):
                shape = "".join(map(self._text, spec.values)) if isinstance(spec, ast.JoinedStr) else ""
                return f'${{py.format({self.expression(value)}, "{shape}")}}'
            case _:
                raise _unknown(node)

    def _call(self, node: ast.Call) -> str:
        positional = [self.expression(each) for each in node.args]
        keywords = {each.arg: self.expression(each.value) for each in node.keywords if each.arg not in CHECKS}
        match node.func:
            case ast.Attribute(value=ast.Attribute(attr="structs"), attr="replace"):
                changes = ", ".join(f"{name}: {value}" for name, value in keywords.items())
                return f"py.replace({positional[0]}, {{{changes}}})"
            case ast.Attribute(value=ast.Constant() as separator, attr="join"):
                return f"{positional[0]}.join({self.expression(separator)})"
            case ast.Attribute(value=value, attr="append"):
                return f"{self.expression(value)}.push({positional[0]})"
            case ast.Attribute(value=value, attr=name) if name_of(value) != "math":
                found = next(
                    method
                    for kind in self._program.definitions
                    for method in self._program.methods(kind)
                    if method.name == name
                )
                names = parameters_of(found)[1:]
                return f"{self.expression(value)}.{name}({_in_order(names, positional, keywords)})"
            case ast.Name(id=name) if isinstance(self._program.definitions.get(name), ast.ClassDef):
                named = dict(zip(self._program.parameters(name), positional, strict=False)) | keywords
                return f"new {name}({{{', '.join(f'{key}: {value}' for key, value in named.items())}}})"
            case ast.Name(id=name) if name in self._program.definitions:
                return f"{name}({_in_order(self._program.parameters(name), positional, keywords)})"
            case ast.Name(id="isinstance"):
                return f"({positional[0]} instanceof {positional[1]})"
            case ast.Name(id=name):
                suffix = "_by" if "key" in keywords else ""
                return f"py.{name}{suffix}({', '.join([*positional, *keywords.values()])})"
            case function:
                return f"{self.expression(function)}({', '.join(positional)})"


def _signature(writer: _Writer, node: ast.FunctionDef, *, skip: int) -> str:
    arguments = node.args
    plain = [*arguments.args][skip:]
    defaults: list[ast.expr | None] = [*arguments.defaults]
    missing: list[ast.expr | None] = [None] * (len(plain) - len(defaults))
    pairs = [*zip(plain, [*missing, *defaults], strict=True)]
    pairs += [*zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    texts = (
        _safe(each.arg) + (f" = {writer.expression(value)}" if value is not None else "")
        for each, value in pairs
    )
    return f"{node.name}({', '.join(texts)})"


def _in_order(names: list[str], positional: list[str], keywords: dict[str | None, str]) -> str:
    given = dict(zip(names, positional, strict=False)) | {
        name or "": value for name, value in keywords.items()
    }
    last = max((index for index, name in enumerate(names) if name in given), default=-1)
    return ", ".join(given.get(name, "undefined") for name in names[: last + 1])


def _safe(name: str) -> str:
    return f"{name}_" if name in RESERVED else name


def _constant(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _unknown(node: ast.AST) -> NotImplementedError:
    line = getattr(node, "lineno", 0)
    return NotImplementedError(
        f"{type(node).__name__} is not translated: line {line}: {ast.unparse(node)[:80]}"
    )
