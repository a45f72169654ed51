"""The house stays as drawn: imports go one way, and each library has its one place."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path


def imported(path: Path) -> set[str]:
    """Full dotted names that a module imports, anywhere in its text."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            raise AssertionError(f"{path}: relative import; this project writes full names")
    return names


def uses(path: Path, library: str) -> bool:
    return any(name == library or name.startswith(library + ".") for name in imported(path))


ALL = [*modules("engine"), *modules("dashboard")]


@pytest.mark.parametrize(("name", "path"), list(modules("engine")))
def test_engine_knows_nothing_of_the_dashboard(name: str, path: Path) -> None:
    for library in ("dashboard", "streamlit", "plotly", "duckdb", "pandas"):
        assert not uses(path, library), f"{name} imports {library}"


@pytest.mark.parametrize(("name", "path"), list(modules("dashboard")))
def test_each_library_has_its_place(name: str, path: Path) -> None:
    if uses(path, "duckdb"):
        assert name == "dashboard/store.py"
    if uses(path, "plotly"):
        assert name.startswith("dashboard/charts/")
    if uses(path, "streamlit"):
        allowed = (
            "dashboard/app.py",
            "dashboard/shell/",
            "dashboard/widgets/",
            "dashboard/charts/",
            "dashboard/pages/",
        )
        allowed += ("dashboard/serving/gate.py", "dashboard/serving/served.py")
        assert name.startswith(allowed)


@pytest.mark.parametrize(("name", "path"), ALL)
def test_what_talks_to_servers_stays_in_one_place(name: str, path: Path) -> None:
    inside = name.startswith("engine/recording/")
    for library in ("aiohttp", "zmq", "msgspec", "vllm"):
        assert inside or not uses(path, library) or name == "engine/cli/recording.py", f"{name} imports {library}"
    assert inside or not uses(path, "engine.recording") or name.startswith("engine/cli/"), f"{name} imports recording"


# Inside the engine: who may import whom (docs/architecture.md). A package may always import itself.
LAYERS = {
    "engine.errors": set(),
    "engine.jsonl": {"engine.errors"},
    "engine.collector": set(),
    "engine.arrays": set(),
    "engine.knobs": {"engine.errors"},
    "engine.bundle": {"engine.errors", "engine.identity", "engine.arrays"},
    "engine.identity": {"engine.errors"},
    "engine.traces": {"engine.errors", "engine.jsonl", "engine.collector", "engine.arrays"},
    "engine.deployment": {"engine.errors"},
    "engine.timing": {"engine.errors", "engine.bundle", "engine.identity", "engine.deployment"},
    "engine.serving": {"engine.errors", "engine.timing"},
    "engine.workload": {"engine.errors", "engine.traces", "engine.serving"},
    "engine.intake": {"engine.errors"},
    "engine.definitions": {"engine.identity"},
    "engine.importers": {
        "engine.errors",
        "engine.arrays",
        "engine.collector",
        "engine.jsonl",
        "engine.intake",
        "engine.bundle",
        "engine.identity",
        "engine.definitions",
        "engine.traces",
    },
    "engine.recording": {
        "engine.errors",
        "engine.jsonl",
        "engine.knobs",
        "engine.bundle",
        "engine.traces",
        "engine.serving",
        "engine.workload",
        "engine.intake",
        "engine.importers",
        "engine.parity",
    },
}


@pytest.mark.parametrize("layer", LAYERS)
def test_engine_layers(layer: str) -> None:
    root = ROOT / Path(*layer.split("."))
    paths = sorted(root.rglob("*.py")) if root.is_dir() else [root.with_suffix(".py")]
    allowed = LAYERS[layer] | {layer}
    for path in paths:
        for name in imported(path):
            if name.startswith("engine."):
                assert any(name == a or name.startswith(a + ".") for a in allowed), f"{path} imports {name}"


def test_no_import_circles() -> None:
    names = {name.removesuffix("/__init__.py").removesuffix(".py").replace("/", "."): path for name, path in ALL}
    graph = {
        module: {n for n in imported(path) if n in names and n != module and not module.startswith(n + ".")}
        for module, path in names.items()
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, "circle: " + " -> ".join([*trail[trail.index(module) :], module])
        if module in done:
            return
        for other in sorted(graph[module]):
            visit(other, (*trail, module))
        done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_command_line_starts_without_pandas_or_the_browser_side() -> None:
    code = (
        "import sys, engine.cli.main; "
        "print([m for m in ('pandas', 'streamlit', 'plotly', 'duckdb', 'dashboard') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("path", sorted((ROOT / "dashboard" / "pages").glob("*.py")), ids=lambda p: p.stem)
def test_pages_hold_no_sql(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert "select " not in node.value.lower().replace("\n", " ") or " from " not in node.value.lower()
