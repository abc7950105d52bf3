"""The house: who may import whom, no circles, what stays out of memory, how large a page may grow."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STREETS = {"job", "plan", "verify", "convert", "bench"}
GROUND = {"errors"}  # what anyone may import
FILES = sorted([*(ROOT / "offgen").rglob("*.py"), *(ROOT / "kernels" / "offgen_kernels").rglob("*.py")])

# room: the rooms it may import, inside the project (docs/architecture.md draws the same table)
MAY_IMPORT: dict[str, set[str]] = {
    "offgen_kernels": set(),
    "errors": set(),
    "stats": set(),
    "engine.options": set(),
    "scheduling": set(),
    "sampling.params": set(),
    "json_text": set(),
    "columns": {"json_text"},
    "records": {"sampling.params"},
    "readers": {"records", "columns", "json_text"},
    "writers": {"records", "columns", "json_text", "stats"},
    "text": {"records", "sampling.params"},
    "backends": {"offgen_kernels"},
    "checkpoints": set(),
    "models": {"backends"},
    "sampling": {"backends", "records", "sampling.params", "offgen_kernels"},
    "engine": {"engine.options", "scheduling", "sampling", "sampling.params", "models", "backends", "records", "stats"},
    "config": {"sampling.params", "engine.options"},
    "report": {"stats"},
    "api": {
        "config", "records", "stats", "checkpoints", "text", "engine", "engine.options", "sampling.params", "models",
    },
    "cluster": {"job"},
    "cli": {
        "config", "job", "plan", "verify", "convert", "bench", "report", "cluster", "scheduling", "stats", "records",
        "sampling.params", "engine.options",
    },
    "__init__": {"api", "sampling.params"},
    "__main__": {"cli"},
}  # fmt: skip
for street in STREETS:
    MAY_IMPORT[street] = {
        "config", "records", "stats", "checkpoints", "readers", "columns", "json_text", "text", "engine",
        "engine.options", "scheduling", "writers", "report", "models", "sampling.params", "backends",
    }  # fmt: skip

HEAVY = {"torch", "transformers", "triton", "datasets", "ray", "numba"}
MAY_IMPORT_HEAVY: dict[str, set[str]] = {
    "offgen_kernels": {"torch", "triton"},
    "readers": {"datasets"},
    "convert": {"datasets"},
    "text": {"transformers"},
    "backends": {"torch", "numba", "triton"},
    "checkpoints": {"torch", "transformers"},
    "models": {"torch", "transformers"},
    "sampling": {"torch"},
    "engine": {"torch"},
    "bench": {"torch"},
    "cluster": {"ray"},
}


def room_of(module: str) -> str:
    """`offgen.sampling.params` -> `sampling.params`; `offgen.readers.jsonl` -> `readers`."""
    parts = module.split(".")
    if parts[0] == "offgen_kernels":
        return "offgen_kernels"
    if len(parts) == 1:
        return "__init__"
    inner = ".".join(parts[1:3])
    return inner if inner in {"sampling.params", "engine.options"} else parts[1]


def module_of(path: Path) -> str:
    base = ROOT if (ROOT / "offgen") in path.parents else ROOT / "kernels"
    parts = list(path.relative_to(base).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Every module a file imports, inside functions and TYPE_CHECKING blocks too."""
    found: set[str] = set()
    package = module_of(path).split(".") if path.name == "__init__.py" else module_of(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = {f"{module}.{alias.name}" for alias in node.names if module_exists(f"{module}.{alias.name}")}
            found |= names or {module}
    return found


def module_exists(module: str) -> bool:
    base = ROOT if module.startswith("offgen.") else ROOT / "kernels"
    path = base.joinpath(*module.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_each_room_imports_only_what_the_plan_allows(path: Path) -> None:
    room = room_of(module_of(path))
    ours = {m for m in imports_of(path) if m.split(".")[0] in {"offgen", "offgen_kernels"}}
    wrong = {m for m in ours if (r := room_of(m)) != room and r not in MAY_IMPORT[room] | GROUND and m != "offgen"}
    assert not wrong, f"{room} may not import {sorted(wrong)}"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_heavy_packages_stay_in_their_rooms(path: Path) -> None:
    room = room_of(module_of(path))
    heavy = {m.split(".")[0] for m in imports_of(path)} & HEAVY
    assert heavy <= MAY_IMPORT_HEAVY.get(room, set())


def test_the_plan_has_no_circles() -> None:
    done: set[str] = set()

    def visit(room: str, path: tuple[str, ...]) -> None:
        assert room not in path, f"circle: {' -> '.join([*path, room])}"
        if room in done:
            return
        for other in MAY_IMPORT.get(room, set()):
            if other.split(".")[0] != room.split(".")[0]:
                visit(other, (*path, room))
        done.add(room)

    for room in MAY_IMPORT:
        visit(room, ())


def test_every_room_is_in_the_plan() -> None:
    assert {room_of(module_of(path)) for path in FILES} <= set(MAY_IMPORT) | GROUND


@pytest.mark.parametrize("module", ["offgen", "offgen.cli", "offgen.scheduling", "offgen.config", "offgen.records"])
def test_light_rooms_leave_heavy_packages_unloaded(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {HEAVY | {'pyarrow', 'numpy'}!r}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.split() == []


def test_importing_the_reference_kernels_needs_no_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import offgen_kernels.reference"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT / "kernels")


def test_the_kernels_folder_does_not_shadow_a_distribution_of_that_name() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()
    code = "from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_page_stays_a_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 300, "a second noun has moved in"
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}, "name the noun"
    tree = ast.parse(text)
    assert not text.strip() or ast.get_docstring(tree), "say what the module is for"
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.end_lineno
        and node.end_lineno - node.lineno + 1 > 60
        and not is_command(node)
    ]
    assert not long, f"longer than a screen: {long}"


def is_command(node: ast.FunctionDef) -> bool:
    """A Typer command's body may be short while its options fill pages, and a kernel's signature is a list."""
    body_lines = (node.end_lineno or 0) - node.body[0].lineno + 1
    return body_lines <= 60


def test_make_test_gpu_names_every_file_with_a_gpu_test() -> None:
    marker = "mark." + "gpu"
    marked = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py") if marker in path.read_text()
    }
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert marked == set(re.search(r"^GPU_TESTS := (.*)$", makefile, re.M)[1].split())  # type: ignore[index]
