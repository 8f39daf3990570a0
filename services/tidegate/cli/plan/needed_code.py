"""Finds the definitions of modules that a program needs, by the references of its roots in the syntax trees."""

import ast
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass
class NeededCode:
    """Definitions by name, in the order of their modules; ``needed`` grows from the roots."""

    definitions: dict[str, Definition] = field(default_factory=dict[str, Definition])
    needed: set[str] = field(default_factory=set[str])
    attributes: set[str] = field(default_factory=set[str])

    def add(self, module: ModuleType) -> None:
        """Add the functions, structs and constants of a module."""
        for node in ast.parse(inspect.getsource(module)).body:
            name = _defined(node)
            if name and isinstance(node, Definition):
                assert name not in self.definitions, f"two modules define {name}"
                self.definitions[name] = node

    def require(self, name: str) -> None:
        """Mark a definition and all that it refers to."""
        if name in self.needed or name not in self.definitions:
            return
        self.needed.add(name)
        node = self.definitions[name]
        self.scan(_plain_parts(node))

    def scan(self, nodes: Iterable[ast.AST]) -> None:
        """Require what these nodes refer to; methods join once their name is used as an attribute."""
        for node in nodes:
            for each in ast.walk(node):
                if isinstance(each, ast.Name):
                    self.require(each.id)
                elif isinstance(each, ast.Attribute) and each.attr not in self.attributes:
                    self.attributes.add(each.attr)
        for name in list(self.needed):
            for method in self.methods(name):
                if method.name not in self.needed:
                    self.needed.add(method.name)
                    self.scan(method.body)

    def methods(self, name: str) -> list[ast.FunctionDef]:
        """The methods of a struct that something needed uses."""
        node = self.definitions.get(name)
        if not isinstance(node, ast.ClassDef):
            return []
        return [
            each for each in node.body if isinstance(each, ast.FunctionDef) and each.name in self.attributes
        ]

    def parameters(self, name: str) -> list[str]:
        """Parameters of a function, or fields of a struct, in order."""
        node = self.definitions[name]
        return fields_of(node) if isinstance(node, ast.ClassDef) else parameters_of(_function(node))


def parameters_of(node: ast.FunctionDef) -> list[str]:
    """Parameters in order, those by keyword last."""
    return [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]


def fields_of(node: ast.ClassDef) -> list[str]:
    """Fields of a struct in order."""
    return [
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]


def _plain_parts(node: Definition) -> list[ast.AST]:
    """The parts of a definition that run: no annotations, and of a struct only its defaults."""
    match node:
        case ast.FunctionDef():
            defaults = (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None))
            return [*_without_annotations(node.body), *defaults]
        case ast.ClassDef():
            return [
                each.value for each in node.body if isinstance(each, ast.AnnAssign) and each.value is not None
            ]
        case _:
            return [node.value] if node.value is not None and not is_type(node) else []


def _without_annotations(nodes: list[ast.stmt]) -> list[ast.AST]:
    kept: list[ast.AST] = []
    for node in nodes:
        kept += (
            [node.target, *([node.value] if node.value else [])]
            if isinstance(node, ast.AnnAssign)
            else [node]
        )
    return kept


def is_type(node: ast.AST) -> bool:
    """Whether a definition only names a type."""
    return isinstance(node, ast.AnnAssign) and name_of(node.annotation) == "TypeAlias"


def _defined(node: ast.stmt) -> str:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
        case _:
            return ""


def _function(node: Definition) -> ast.FunctionDef:
    assert isinstance(node, ast.FunctionDef), "only functions and structs are called"
    return node


def name_of(node: ast.expr) -> str:
    """A plain name; empty for every other expression."""
    return node.id if isinstance(node, ast.Name) else ""
