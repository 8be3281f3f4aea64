"""Tests of all settings together: each is read, has a range, and has its default in one place."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

import notary
from notary.config import SETTINGS, Config
from ordering.settings import Seconds
from tests.notary.attribute_reads import AttributeReads

ROOT = Path(notary.__file__).parents[1]
"""The folder of the packages under test: the checkout, or an environment in which they are installed."""
PACKAGES = ("ordering", "payload", "joiner", "notary")
CHECKS = "_wrong_values"
"""The function that only checks settings: it does not use them."""
CLIENT = ROOT / "notary" / "client"
"""The client has parameters of its own."""


def structs() -> dict[str, type[msgspec.Struct]]:
    """Returns the settings struct of each member of `Config` that has one."""
    kinds = {
        field.name: get_args(field.type)[0] if get_origin(field.type) is Annotated else field.type
        for field in msgspec.structs.fields(Config)
    }
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}


FIELDS = [("", key) for key in ("name", "origin", "key_file", "key_history_file", "parties_file")] + [
    (member, field) for member, kind in structs().items() for field in kind.__struct_fields__
]


@cache
def trees() -> dict[Path, ast.Module]:
    """Returns the syntax tree of every product file."""
    return {file: ast.parse(file.read_text()) for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


@cache
def reads() -> frozenset[tuple[str, str]]:
    """Returns (class, attribute) for every attribute that product code reads, outside of the function that only checks settings."""
    return frozenset(AttributeReads(trees().values(), without=[CHECKS]).found)


def is_read(member: str, field: str) -> bool:
    """Returns whether product code reads that field of that member's struct, in its own unit or in seconds."""
    kind = structs().get(member, Config)
    names = {field} | {name for name, value in vars(kind).items() if isinstance(value, Seconds) and value.field == field}
    return any((kind.__name__, name) in reads() for name in names)


@pytest.mark.parametrize(("member", "field"), FIELDS, ids=[f"{member}.{field}".lstrip(".") for member, field in FIELDS])
def test_every_field_is_read(member: str, field: str) -> None:
    """Product code reads every field of every settings struct: no setting is accepted and does nothing."""
    assert is_read(member, field), "no code reads this setting: read it in its package, or remove it"


def test_a_field_of_another_struct_is_not_read() -> None:
    """A read counts for the struct that has the field, and for no other variable of the same name."""
    assert is_read("sender", "in_flight_max")
    assert not any(is_read(member, "in_flight_max") for member in structs() if member != "sender")


SOURCE = """
class Some:
    read_ms: int
    checked_ms: int
    written_ms: int
    unread_ms: int

class Other:
    unread_ms: int

class Both:
    some: Some

def _wrong_values(settings: Some):
    return settings.checked_ms

class User:
    def __init__(self, settings: Both, other: Other):
        self._settings = settings.some
        self._settings.written_ms = other.unread_ms

    def use(self):
        return self._settings.read_ms
"""


def test_an_unread_field_is_found() -> None:
    """A field is unread if it is only checked or written, or if only another struct's field of that name is read."""
    found = AttributeReads([ast.parse(SOURCE)], without=[CHECKS]).found
    assert {field for kind, field in found if kind == "Some"} == {"read_ms"}


def test_every_number_has_a_range() -> None:
    """Every setting that is a number declares its least and its largest value."""
    numbers = [setting for setting in SETTINGS.values() if setting.type in (int, float)]
    assert len(numbers) > 20
    assert not [setting.name for setting in numbers if setting.range is None or None in (setting.range.ge, setting.range.le)]


def test_every_default_is_in_range() -> None:
    """So a range that is narrowed later takes the default with it."""
    for setting in SETTINGS.values():
        if setting.range is not None:
            assert setting.range.ge <= setting.default <= setting.range.le, setting.name


def stem(name: str) -> str:
    """Returns a name without `max`, and with one unit of time: `head_s` and `head_ms_max` are one thing."""
    return re.sub(r"_ms(?=_|$)", "_s", name.lower()).removesuffix("_max")


def numbers_with_default(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yields (name, default) of every class member, parameter and variable whose default is written as a number."""
    for node in ast.walk(tree):
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            pairs = [(node.target.id, node.value)]
        elif isinstance(node, ast.Assign):
            pairs = [(target.id, node.value) for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            pairs = [(each.arg, value) for each, value in zip(reversed(positional), reversed(node.defaults), strict=False)]
            pairs += [(each.arg, value) for each, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        for name, value in pairs:
            parts = [] if value is None else list(ast.walk(value))
            if all(isinstance(part, ast.Constant | ast.BinOp | ast.operator) for part in parts) and any(
                isinstance(part, ast.Constant) and type(part.value) in (int, float) for part in parts
            ):
                assert value is not None
                yield name, value


def defaults_of(stems: set[str]) -> dict[str, list[str]]:
    """Returns, by stem, the places where product code writes a default for that name."""
    found: dict[str, list[str]] = {each: [] for each in stems}
    for file, tree in trees().items():
        if CLIENT in file.parents:
            continue
        for name, value in numbers_with_default(tree):
            # A constant of a module is not a setting, even if its name is one in capitals; and a count starts at 0.
            if not name.isupper() and ast.unparse(value) != "0" and (each := stem(name)) in found:
                found[each].append(f"{file.relative_to(ROOT)}:{value.lineno} {name}")
    return found


def test_no_default_stands_twice() -> None:
    """A number that is the default of a setting stands in its settings struct alone, whatever unit another place might have."""
    numbers: dict[str, list[Any]] = {}
    for member, kind in structs().items():
        for field in msgspec.structs.fields(kind):
            if type(field.default) in (int, float) and field.default:
                numbers.setdefault(stem(field.name), []).append(f"{member}.{field.name}")
    found = defaults_of(set(numbers))
    assert {each: places for each, places in found.items() if len(places) != len(numbers[each])} == {}


@pytest.mark.parametrize(
    "source", ["def f(head_s: float = 10.0): ...", "class A:\n    head_s_max: float = 5", "def f(*, head_ms=2_000): ..."]
)
def test_a_default_that_stands_twice_is_found(source: str) -> None:
    """The test above sees a default of a parameter and of a member, in any unit of time."""
    assert [stem(name) for name, _ in numbers_with_default(ast.parse(source))] == [stem("head_ms_max")]
