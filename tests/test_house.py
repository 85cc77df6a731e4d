"""The house rules that a reader of the tree relies on: short files, one direction of imports, no attics."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STACK = ("zoo", "train", "eval")  # each imports itself and those before it
MAX_LINES = 400
# The one way to the key-value store of jax's coordinator, to which jax has no public one.
PRIVATE = {"train/lost_process.py": "jax._src.distributed"}
ATTIC = re.compile(r"_*(utils?|utilities|helpers?|misc|common|tools?|stuff|lib)\d*(\.py)?")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(source: str, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """Every import of a source text, at any depth: (line, dotted module), relative ones resolved against `package`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            found.append((node.lineno, ".".join((*base, *([node.module] if node.module else [])))))
    return sorted(found)


def forbidden(source: str, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """The imports that a file in `package` may not have: of later packages of the stack, of tests, of private jax."""
    later = (*STACK[STACK.index(package[0]) + 1 :], "tests", "notebooks")
    return [
        (line, name)
        for line, name in imported(source, package)
        if name.split(".")[0] in later or name.split(".")[:2] == ["jax", "_src"]
    ]


def test_files_are_short():
    files = python_files(*STACK, "tests")
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert files and {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_imports_run_one_way():
    found = {}
    for path in python_files(*STACK):
        bad = forbidden(path.read_text(encoding="utf-8"), path.relative_to(ROOT).parent.parts)
        bad = [(line, name) for line, name in bad if name != PRIVATE.get(relative(path))]
        if bad:
            found[relative(path)] = bad
    assert found == {}


def test_forbidden_sees_each_kind_of_import():
    assert forbidden("import train.step\nimport jax", ("zoo",)) == [(1, "train.step")]
    assert forbidden("def f():\n    from eval import tasks", ("train", "data")) == [(2, "eval")]
    assert forbidden("from ..data import rows\nfrom . import step", ("train", "recipes")) == []
    assert forbidden("from jax._src import core", ("eval",)) == [(1, "jax._src")]
    assert forbidden("from zoo import config\nfrom train import step", ("eval",)) == []
    assert forbidden("from tests.zoo import golden", ("eval",)) == [(1, "tests.zoo")]


def test_no_attics():
    names = {path for package in STACK for path in (ROOT / package).rglob("*") if path.suffix in ("", ".py")}
    assert [relative(path) for path in sorted(names) if ATTIC.fullmatch(path.name)] == []


def test_nothing_imports_eval_by_its_bare_name():
    """`import eval` would hide the builtin in that file: it is `from eval import tasks`."""
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in python_files(*STACK, "tests")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import) and any(alias.name == "eval" and not alias.asname for alias in node.names)
    ]
    assert found == []


def test_json_that_is_written_is_json():
    """json.dumps writes NaN and Infinity, which no other reader takes, unless it is told not to."""
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in python_files("train", "eval")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "json.dump")
        and "allow_nan=False" not in map(ast.unparse, node.keywords)
    ]  # fmt: skip
    assert found == []


def test_no_package_lies_under_tests():
    """tests/zoo/__init__.py would make tests/zoo a package named zoo."""
    assert [relative(path) for path in (ROOT / "tests").rglob("__init__.py")] == []


def test_every_package_folder_is_installed():
    """A folder of Python files without __init__.py would be missing from a built distribution."""
    bare = {path.parent for path in python_files(*STACK) if not (path.parent / "__init__.py").exists()}
    assert sorted(relative(path) for path in bare) == []


def test_the_lint_contract_says_the_same():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    assert settings["root_packages"] == list(STACK)
    assert settings["contracts"][0]["layers"] == list(reversed(STACK))
