"""Names and first lines of docstrings: the rules of CONTRIBUTING.md, "Write plainly"."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

TOP = Path(__file__).parents[2]
PACKAGE = TOP / "loadmanager"
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMED_MODULES = [module for module in MODULES if not module.stem.startswith("__")]

RELATIVE_CLAUSE = re.compile(
    r"(What|Who|Whom|Whose|Which|Whether|Whoever|Whatever|Where|How|Why|When|All that|That|So|From|Of|As)\b"
)
NOUNS_OF_THE_FIELD = frozenset(
    {"splitting", "shedding", "planning", "merging", "hashing", "logging", "tracing", "testing"}
)


@cache
def trees() -> dict[Path, ast.Module]:
    """Parse all modules: not at import, since all processes of a run import this."""
    return {module: ast.parse(module.read_text(encoding="utf-8")) for module in MODULES}


def documented(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "the module"), text.splitlines()[0]
        body = getattr(node, "body", None)
        for before, after in pairwise(body if isinstance(body, list) else []):
            match before, after:
                case (ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text)))):
                    yield ast.unparse(before).partition("\n")[0], text.splitlines()[0]


def test_docstrings_begin_with_a_noun_or_an_imperative() -> None:
    others = {
        module: ast.parse(module.read_text(encoding="utf-8"))
        for folder in ("benchmarks", "examples", "tests")
        for module in sorted((TOP / folder).rglob("*.py"))
    }
    clauses = [
        f"{module.relative_to(TOP)}: {name}: {line}"
        for module, tree in {**trees(), **others}.items()
        for name, line in documented(tree)
        if RELATIVE_CLAUSE.match(line)
    ]
    assert clauses == []


def test_modules_have_names_of_their_own() -> None:
    assert len(NAMED_MODULES) > 300
    names = Counter(module.name for module in NAMED_MODULES)
    assert [name for name, count in names.items() if count > 1] == []


def test_public_classes_have_names_of_their_own() -> None:
    classes = (node.name for tree in trees().values() for node in tree.body if isinstance(node, ast.ClassDef))
    names = Counter(name for name in classes if not name.startswith("_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_modules_are_named_by_nouns() -> None:
    last_words = {module: module.stem.rsplit("_", 1)[-1] for module in NAMED_MODULES}
    participles = [
        str(module.relative_to(PACKAGE))
        for module, word in last_words.items()
        if word.endswith("ing") and word not in NOUNS_OF_THE_FIELD
    ]
    assert participles == []


def members(prefix: str, body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef(name, body=inner):
                yield prefix + name
                yield from members(f"{prefix}{name}.", inner)
            case (
                ast.FunctionDef(name)
                | ast.AsyncFunctionDef(name)
                | ast.Assign([ast.Name(name)])
                | ast.AnnAssign(ast.Name(name))
            ):
                yield prefix + name


def test_references_to_code_resolve() -> None:
    dotted = {".".join(module.relative_to(PACKAGE).with_suffix("").parts): module for module in MODULES}
    paths = {name.removesuffix(".__init__"): trees()[module] for name, module in dotted.items()}
    known = {"broker.conf", *paths} | {each for name, tree in paths.items() for each in members(f"{name}.", tree.body)}
    rooms = {name.partition(".")[0] for name in paths}
    references = {
        reference.removeprefix("loadmanager.")
        for module in MODULES
        for reference in re.findall(r"`((?:\w+\.)+\w+)(?:\(.*?\))?`", module.read_text(encoding="utf-8"))
        if reference.partition(".")[0] in {"loadmanager", *rooms}
    }
    assert len(references) > 50
    assert references - known == set()
