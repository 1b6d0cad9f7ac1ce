"""Compares what a module says it exports with what it has, and the stub of the native core with the core."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# What the interpreter and pybind11 give to every class. The buffer protocol is a slot of the type, which Python shows
# under its name from 3.12 on.
_GIVEN = frozenset(dir(type("Empty", (), {}))) | {"__weakref__", "_pybind11_conduit_v1_", "__buffer__"}
# Both forms are ways to say one thing that a stub leaves to its base class or to the type system.
_ENUM_GIVEN = {"__members__", "__entries", "__index__", "__int__", "name", "value", "__getstate__", "__setstate__"}


def _public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def stub_names(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Names that a stub defines → the bodies of classes (empty for anything else)."""
    names: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = node.body
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.setdefault(node.name, [])
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = []
        elif isinstance(node, ast.Assign):
            names.update((target.id, []) for target in node.targets if isinstance(target, ast.Name))
    return {name: inner for name, inner in names.items() if _public(name)}


def _members(kind: type) -> set[str]:
    given = _GIVEN | (_ENUM_GIVEN if hasattr(kind, "__members__") else set())
    own = {name for name in vars(kind) if _public(name)} - given - {"__doc__", "__module__"}
    # pybind11 gives every class a constructor, which only raises where none was bound.
    if "__init__" in vars(kind) and "(self: " not in (vars(kind)["__init__"].__doc__ or "(self: "):
        own.discard("__init__")
    return own


def check_stub(stub: str, module: Any) -> Iterator[str]:
    """Differences between a stub's text and the module, in names of the module and of its classes."""
    declared = stub_names(ast.parse(stub).body)
    present = {name for name in vars(module) if _public(name) and not name.startswith("__")}
    yield from (f"{name}: in the stub, not in the module" for name in sorted(declared.keys() - present))
    yield from (f"{name}: in the module, not in the stub" for name in sorted(present - declared.keys()))
    for name in sorted(declared.keys() & present):
        kind = getattr(module, name)
        if not inspect.isclass(kind):
            continue
        members = stub_names(declared[name]).keys() - _GIVEN - {"__init__"}
        actual = _members(kind) - {"__init__"}
        yield from (f"{name}.{member}: in the stub, not in the module" for member in sorted(members - actual))
        yield from (f"{name}.{member}: in the module, not in the stub" for member in sorted(actual - members))


def check_exports(module: ModuleType) -> Iterator[str]:
    """`__all__` names what is there, and everything public that the module itself defines."""
    exported = getattr(module, "__all__", ())
    for name in exported:
        if not hasattr(module, name):
            yield f"{module.__name__}: exports {name}, which it does not have"
    for name, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__ and (
            inspect.isclass(value) or inspect.isfunction(value)
        )
        if own and not name.startswith("_") and name not in exported:
            yield f"{module.__name__}: {name} is public and not exported"
