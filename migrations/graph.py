"""The revisions that this code carries, read from the files: importing Alembic would slow every start."""

import ast
from pathlib import Path

from migrations.errors import SeveralHeads

VERSIONS = Path(__file__).parent / "versions"


def parents(versions: Path = VERSIONS) -> dict[str, tuple[str, ...]]:
    """Each revision with its parents; the first has none."""
    found: dict[str, tuple[str, ...]] = {}
    for file in sorted(versions.glob("*.py")):
        values: dict[str, object] = {}
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name, value = node.targets[0].id, node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                name, value = node.target.id, node.value
            else:
                continue
            if name in ("revision", "down_revision"):
                values[name] = ast.literal_eval(value)
        if "revision" in values:
            down = values.get("down_revision") or ()
            found[str(values["revision"])] = (down,) if isinstance(down, str) else tuple(down)  # type: ignore[arg-type]
    return found


def heads(versions: Path = VERSIONS) -> list[str]:
    """The revisions that no other builds on: exactly one in a sound tree."""
    graph = parents(versions)
    built_on = {parent for its in graph.values() for parent in its}
    return sorted(set(graph) - built_on)


def line(versions: Path = VERSIONS) -> list[str]:
    """From the first revision to the head: one line of descent. Raises SeveralHeads."""
    graph = parents(versions)
    found = [head(versions)]
    while graph[found[-1]]:
        found.append(graph[found[-1]][0])
    return found[::-1]


def head(versions: Path = VERSIONS) -> str:
    """The newest revision. Raises SeveralHeads."""
    found = heads(versions)
    if len(found) != 1:
        raise SeveralHeads(
            f"The migrations have {len(found)} heads ({', '.join(found) or 'none'}) where there must be one: "
            "give one of them the other as its down_revision."
        )
    return found[0]
