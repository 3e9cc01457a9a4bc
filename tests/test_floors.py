"""The floors of the house: a room imports only from floors below, and on its own floor only what is named here."""

import ast
from pathlib import Path

import tenfold

SOURCE = Path(tenfold.__file__).parent
FLOORS = [
    {"errors", "files", "world", "signals", "hardware", "reference", "environment", "rundir", "heartbeat"},
    {"model", "data", "recipe", "filmfile"},
    {"training", "run"},
    {"evaluate", "generate", "prepare", "ladder", "exchange", "track", "film"},
    {"verify"},
    {"cli", "api", "work", "datasets", "sinks", "console", "listing", "watch", "__main__", "__init__"},
]
BESIDE = {  # room -> rooms on its own floor that it may import
    "hardware": {"errors", "reference"},
    "reference": {"errors"},
    "world": {"errors"},
    "signals": {"world"},
    "environment": {"hardware"},
    "rundir": {"errors", "files"},
    "heartbeat": {"world", "rundir"},
    "data": {"model"},  # IGNORE, the target of a filler row
    "training": {"run"},  # the cadence
    "run": {"training"},  # Speed, which is what a Run has
    "evaluate": {"generate"},  # the harness wants text too
    "__main__": {"cli"},
    "__init__": {"api", "run"},
    "cli": {"api", "console", "listing", "watch"},
    "api": {"console", "datasets", "sinks", "work"},
    "datasets": {"console"},
    "work": {"console"},
    "watch": {"api"},  # the playground's process alone
}
WATCH_MAY = {"errors", "files", "rundir", "reference", "filmfile", "run", "track", "watch"}  # torch is in none of them
GROUND_MAY = {"torch"}
TORCH_FREE = {
    "errors",
    "files",
    "rundir",
    "hardware",
    "reference.cards",
    "reference.curves",
    "recipe",
    "run",
    "sinks",
    "model.config",
    "training.speed",
    "training.signs",
    "training.initial",
    "filmfile",
    "data.shards",
    "data.foreign",
    "data.census",
    "data.statistics",
    "ladder.plan",
    "ladder.report",
    "ladder.page",
    "ladder.figures",
    "ladder.lessons",
    "track.logs",
    "track.match",
    "track.causes",
    "track.verdict",
    "watch.app",
    "watch.player",
    "watch.report",
    "watch.picture",
    "cli.entry",
}


def floor(room: str) -> int:
    """Number of a room's floor, the ground being 0."""
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


def imports(path: Path, top_only: bool = False) -> set[str]:
    """Modules that a file imports, wherever in it, or at its top level, where importing it imports them."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_only else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "tenfold" else {node.module}
            )
    return found


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below it."""
    return {".".join(p.relative_to(SOURCE).with_suffix("").parts): p for p in SOURCE.rglob("*.py")}


def room_of(module: str) -> str:
    """The room that a module lies in."""
    return module.split(".")[0]


def test_every_room_has_a_floor() -> None:
    assert {room_of(m) for m in modules()} == set().union(*FLOORS)


def test_imports_go_down() -> None:
    for module, path in modules().items():
        room = room_of(module)
        for name in imports(path):
            if not name.startswith("tenfold."):
                continue
            other = name.split(".")[1]
            if other == room:
                continue
            below = floor(other) < floor(room)
            assert below or other in BESIDE.get(room, set()), f"{module} imports {name}"


def test_the_ground_is_the_standard_library_and_torch() -> None:
    import sys

    for module, path in modules().items():
        if room_of(module) in FLOORS[0]:
            for name in imports(path):
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names | GROUND_MAY | {"tenfold"}, f"{module} imports {name}"


def test_what_the_command_line_reads_first_needs_no_torch() -> None:
    for module in TORCH_FREE:
        path = SOURCE / (module.replace(".", "/") + ".py")
        assert not any(name.split(".")[0] == "torch" for name in imports(path, top_only=True)), module


def test_there_is_one_step() -> None:
    """No second training step: only one place calls an optimizer's step or a backward outside the memory trial."""
    text = {m: p.read_text() for m, p in modules().items() if m != "ladder.lessons"}  # whose code is only shown
    assert [m for m, t in text.items() if "optimizer.step()" in t] == ["training.trainer"]
    assert sorted(m for m, t in text.items() if ".backward()" in t) == ["training.fit", "training.trainer"]


def test_the_page_reads_files_only() -> None:
    """What it serves with imports nothing that trains; only the playground's process has a model."""
    for module, path in modules().items():
        if room_of(module) == "watch":
            may = WATCH_MAY | ({"api"} if module == "watch.player" else set())
            others = {name.split(".")[1] for name in imports(path) if name.startswith("tenfold.")}
            assert others <= may, f"{module} imports {others - may}"
