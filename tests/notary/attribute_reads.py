"""The attributes that product code reads, each with the class of the object that it is read of: a small type inference.

It follows annotations of parameters, members, properties and results, and assignments of such values to variables and to `self`. An object
whose class it does not learn has no reads, so that a read is never credited to a class by a variable's name.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_COPIES = ("replace", "deepcopy", "copy")


class AttributeReads:
    """`found` has (class, attribute) for each attribute that is read. Functions named in `without` are left out."""

    def __init__(self, trees: Iterable[ast.Module], without: Iterable[str] = ()) -> None:
        self.found: set[tuple[str, str]] = set()
        self._without = set(without)
        self._members: dict[str, dict[str, str]] = defaultdict(dict)
        self._bases: dict[str, list[str]] = {}
        self._results: dict[str, str] = {}
        trees = list(trees)
        self._classes = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        before = None
        while before != (before := self._learned()):  # a member may get its class from a member of another class
            for tree in trees:
                self._block(tree.body, {}, "")

    def _learned(self) -> tuple[int, int]:
        """Returns how many members and results are known: both only grow."""
        return sum(map(len, self._members.values())), len(self._results)

    def _annotated(self, annotation: ast.expr | None) -> str:
        """Returns the class of ours that an annotation names, also inside of `Final`, `Annotated`, `X | None` and quotes."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        if isinstance(annotation, ast.Name | ast.Attribute):
            name = annotation.id if isinstance(annotation, ast.Name) else annotation.attr
            return name if name in self._classes else ""
        if isinstance(annotation, ast.BinOp):
            return self._annotated(annotation.left) or self._annotated(annotation.right)
        if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
            inner = annotation.slice.elts[0] if isinstance(annotation.slice, ast.Tuple) else annotation.slice
            return self._annotated(inner if annotation.value.id in ("Annotated", "Final", "ClassVar", "Optional") else annotation.value)
        return ""

    def _member(self, kind: str, name: str) -> str:
        return self._members[kind].get(name, "") or next(filter(None, (self._member(base, name) for base in self._bases.get(kind, ()))), "")

    def _kind(self, value: ast.expr | None, known: Mapping[str, str]) -> str:
        """Returns the class of an expression's value, "" if it is not known."""
        match value:
            case ast.Name(id=name):
                return known.get(name, "")
            case ast.Attribute(value=of, attr=name):
                return self._member(self._kind(of, known), name)
            case ast.Await(value=inner) | ast.NamedExpr(value=inner):
                return self._kind(inner, known)
            case ast.IfExp(body=one, orelse=other):
                return self._kind(one, known) or self._kind(other, known)
            case ast.BoolOp(values=values):
                return next(filter(None, (self._kind(each, known) for each in values)), "")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_]) if name in _COPIES:
                return self._kind(first, known)
            case ast.Call(func=ast.Name(id=name)):
                return name if name in self._classes else self._results.get(name, "")
            case ast.Call(func=ast.Attribute(value=of, attr=name)):
                return self._member(self._kind(of, known), f"{name}()")
        return ""

    def _expressions(self, node: ast.AST, known: dict[str, str]) -> None:
        """Note each read in a statement's own expressions."""
        nodes = list(ast.walk(node))
        for each in nodes:
            if isinstance(each, ast.NamedExpr):
                known[each.target.id] = self._kind(each.value, known)
        for each in nodes:
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load) and (kind := self._kind(each.value, known)):
                self.found.add((kind, each.attr))

    def _assign(self, target: ast.expr, kind: str, known: dict[str, str]) -> None:
        if isinstance(target, ast.Name):
            known[target.id] = kind
        elif isinstance(target, ast.Attribute) and kind and (of := self._kind(target.value, known)):
            self._members[of].setdefault(target.attr, kind)

    def _block(self, body: Iterable[ast.stmt], known: dict[str, str], inside: str) -> None:
        """Go through statements; `inside` is the class whose body it is, if any."""
        for node in body:
            if isinstance(node, Function):
                self._function(node, known, inside)
            elif isinstance(node, ast.ClassDef):
                self._bases[node.name] = [base for base in map(self._annotated, node.bases) if base]
                self._block(node.body, dict(known), node.name)
            else:
                self._statement(node, known, inside)

    def _statement(self, node: ast.stmt, known: dict[str, str], inside: str) -> None:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr | ast.withitem | ast.keyword):
                self._expressions(part, known)
        match node:
            case ast.For(target=target) | ast.AsyncFor(target=target):
                for each in ast.walk(target):
                    if isinstance(each, ast.Name):
                        known[each.id] = ""
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if inside:
                self._members[inside][name] = self._annotated(annotation)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                self._assign(target, self._annotated(annotation) or self._kind(value, known), known)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, values, strict=False):
                    self._assign(target, self._kind(value, known), known)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, self._kind(value, known), known)
        for field in ("body", "orelse", "finalbody"):
            self._block(getattr(node, field, ()), known, inside)
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self._block(part.body, known, inside)

    def _function(self, node: Function, known: dict[str, str], inside: str) -> None:
        result = self._annotated(node.returns)
        if inside:
            names = {getattr(each, "id", getattr(each, "attr", "")) for each in node.decorator_list}
            self._members[inside][node.name if names & {"property", "cached_property"} else f"{node.name}()"] = result
        elif result:
            self._results[node.name] = result
        if node.name in self._without:
            return
        own = dict(known)
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        own.update({each.arg: self._annotated(each.annotation) for each in parameters})
        if inside and parameters and parameters[0].arg in ("self", "cls"):
            own[parameters[0].arg] = inside
        self._block(node.body, own, "")
