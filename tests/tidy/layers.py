"""Which layer may use which, and the check that includes and imports obey."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tidy.sources import Source

# A layer of csrc → the layers it names directly; what those may use, it may use too. The same edges as in
# csrc/CMakeLists.txt.
DIRECT = {
    "base": (),
    "io": ("base",),
    "wire": ("base",),
    "memory": ("base",),
    "topology": ("base",),
    "catalog": ("base", "wire"),
    "rpc": ("io", "wire"),
    "transport": ("io", "wire", "memory", "topology"),
    "engine": ("rpc", "transport"),
    "store": ("engine", "rpc", "catalog", "io"),
    "sim": ("store",),
    "python": ("sim", "store"),
}
FRAMEWORKS = ("vllm", "sglang", "tensorrt_llm", "lmcache", "transformers", "nixl", "mooncake")
HEAVY = ("torch", "numpy")
_INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def _closure(layer: str) -> set[str]:
    reached = {layer}
    for below in DIRECT[layer]:
        reached |= _closure(below)
    return reached


ALLOWED = {layer: _closure(layer) for layer in DIRECT}


def check_includes(source: Source) -> Iterator[str]:
    """Back edges among the folders of csrc."""
    parts = source.path.split("/")
    if parts[0] != "csrc" or not source.cpp:
        return
    layer = parts[1]
    if layer not in DIRECT:
        yield f"{source.path}: {layer} is no layer; add it to DIRECT and to csrc/CMakeLists.txt"
        return
    own_folder = parts[2] if len(parts) > 3 else ""
    for included in _INCLUDE.findall(source.text):
        target = included.split("/")
        if target[0] == "pybind11" and layer != "python":
            yield f"{source.path}: only csrc/python includes pybind11"
        if target[0] not in DIRECT or len(target) < 2:
            continue
        if target[0] not in ALLOWED[layer]:
            yield f"{source.path}: {layer} must not include {included}"
        folder = target[1] if target[0] == "transport" and len(target) > 2 else ""
        builtin = source.path.startswith(("csrc/transport/builtin.", "csrc/python/", "csrc/sim/"))
        if folder and not builtin and not (layer == "transport" and folder == own_folder):
            yield f"{source.path}: only transport/{folder} and transport/builtin include {included}"


def imports_of(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(module, whether importing the file imports it); what only a type checker sees is left out."""

    def walk(body: list[ast.stmt], eager: bool) -> Iterator[tuple[str, bool]]:
        for node in body:
            if isinstance(node, ast.Import):
                yield from ((alias.name, eager) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module, eager
                yield from ((f"{node.module}.{alias.name}", eager) for alias in node.names)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from walk(node.orelse, eager)
            else:
                lazy = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                    for child in getattr(node, field, []):
                        inner = child.body if isinstance(child, (ast.ExceptHandler, ast.match_case)) else [child]
                        yield from walk(inner, eager and not lazy)

    yield from walk(tree.body, True)


def check_imports(source: Source) -> Iterator[str]:
    """core imports no framework and no plugin; torch and numpy lazily; a plugin knows only its own framework."""
    parts = source.path.split("/")
    if parts[0] not in ("core", "plugins") or not source.path.endswith(".py"):
        return
    own = parts[1] if parts[0] == "plugins" and len(parts) > 2 else ""
    for module, eager in imports_of(ast.parse(source.text)):
        top = module.split(".")[0]
        if top in FRAMEWORKS and top != own:
            yield f"{source.path}: {parts[0]} must not import {top}"
        if module.startswith("moontide.plugins."):
            plugin = module.split(".")[2]
            if parts[0] == "core" or plugin != own:
                yield f"{source.path}: must not import {module}"
        if eager and (top in HEAVY or top in FRAMEWORKS) and (not own or parts[-1] == "__init__.py"):
            yield f"{source.path}: imports {top} when it is loaded; import it where it is used"
        if top in ("tests", "demo", "bench"):
            yield f"{source.path}: must not import {module}"
