"""Parts of a user's own: the sources that the workers of a comparison import, so that they know the same parts."""

import ast
import builtins
import symtable
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from partwise.ablation.run_plan import RunPlan
from partwise.config import ConfigError, Part, decode_text, own_parts, read_file
from partwise.files import replace_file, working_folder

FILE = "custom_parts.py"
REMEDY = "put the part into a file and pass imports=('my_parts.py',)"


def store_parts(plan: RunPlan, folder: Path, imports: Sequence[str]) -> tuple[str, ...]:
    """Return `imports` and the sources of all other parts of the user's own in `plan`.

    The source of parts that a script or a notebook defines is written into `folder`. Raises ConfigError.
    """
    sources = dict.fromkeys(imports)
    known = {str(Path(name).resolve()) for name in imports if name.endswith(".py")} | {*imports}
    defined_here = []
    for recipe in dict.fromkeys(type(each) for arm in plan.arms for each in own_parts(arm.config)):
        module = sys.modules.get(recipe.__module__)
        path = getattr(module, "__file__", None)
        if recipe.__module__ == "__main__":
            defined_here.append(recipe)
        elif path is None:
            raise ConfigError(f"{_name(recipe)}: its module {recipe.__module__} has no file: {REMEDY}")
        elif not {str(Path(path).resolve()), recipe.__module__} & known:
            sources[recipe.__module__ if getattr(module, "__package__", "") else str(Path(path).resolve())] = None
    if defined_here:
        sources[str(_write(_source(defined_here), folder / FILE))] = None
    return tuple(sources)


def _name(recipe: type[Part]) -> str:
    return f"the part {recipe.family}={recipe.name} ({recipe.__qualname__})"


def _write(source: str, path: Path) -> Path:
    """Write the file; finished trials must not be continued with another source."""
    if path.exists() and ast.dump(ast.parse(read_file(path))) != ast.dump(ast.parse(source)):
        raise ConfigError(f"{path} is another version of your parts: choose another name=..., or delete {path.parent}")
    replace_file(path, source.encode())
    return path.resolve()


def _source(recipes: Sequence[type[Part]]) -> str:
    """The classes of `__main__` and every top-level statement that they need, in order."""
    statements, folder = _statements(recipes[0])
    chosen: set[int] = set()
    for index, statement in enumerate(statements):
        star = isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"
        if star or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            chosen.add(index)
    binders = _binders(statements)
    has_star = any(statement.names[0].name == "*" for statement in statements if isinstance(statement, ast.ImportFrom))
    for recipe in recipes:
        _check_class(recipe, [statements[index] for index in binders.get(recipe.__qualname__, ())])
        pending = [recipe.__qualname__]
        seen = set(pending)
        while pending:
            name = pending.pop()
            if name not in binders and not has_star and name in vars(sys.modules["__main__"]):
                raise ConfigError(
                    f"{_name(recipe)} needs {name!r}, which no top-level statement of the script or notebook defines: "
                    f"define it there, or {REMEDY}"
                )
            for index in binders.get(name, ()):
                chosen.add(index)
                pending += (needed := _names(statements[index])) - seen
                seen |= needed
    path = f"import sys\n\nsys.path.append({str(folder)!r})\n" if folder and folder != working_folder() else ""
    body = "\n\n\n".join(ast.unparse(statements[index]) for index in sorted(chosen))
    future = "from __future__ import annotations\n" if body.startswith("from __future__") else ""
    return f"{future}{path}{body}\n"


def _statements(recipe: type[Part]) -> tuple[list[ast.stmt], Path | None]:
    """The top-level statements of the script, and its folder, or of the notebook's cells."""
    main = sys.modules["__main__"]
    cells, path = getattr(main, "In", None), getattr(main, "__file__", None)
    if isinstance(cells, list):  # IPython keeps the code of every cell that ran
        return [statement for cell in cells for statement in _parse(cell)], None
    if path is None or not Path(path).is_file():
        raise ConfigError(f"{_name(recipe)} has no source, since it was typed or executed without a file: {REMEDY}")
    return _parse(decode_text(read_file(Path(path)))), Path(path).resolve().parent


def _parse(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except SyntaxError:  # a cell that never ran
        return []


def _binders(statements: Sequence[ast.stmt]) -> dict[str, list[int]]:
    """Name -> the indices of the statements that define it; the last of repeated definitions."""
    binders: dict[str, list[int]] = {}
    for index, statement in enumerate(statements):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            binders[statement.name] = [index]
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                binders[alias.asname or alias.name.split(".")[0]] = [index]
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Try) or _is_plain_if(statement):
            for name in _assigned(statement):
                binders.setdefault(name, []).append(index)
    return binders


def _is_plain_if(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" not in ast.unparse(statement.test)


def _assigned(statement: ast.stmt) -> set[str]:
    return {
        symbol.get_name() for symbol in _table(statement).get_symbols() if symbol.is_assigned() or symbol.is_imported()
    }


def _table(statement: ast.stmt) -> symtable.SymbolTable:
    return symtable.symtable(ast.unparse(statement), FILE, "exec")


def _names(statement: ast.stmt) -> set[str]:
    """The global names that a statement refers to, in annotations too."""
    names = set()
    tables = [_table(statement)]
    while tables:
        table = tables.pop()
        top = table.get_type() == "module"
        names |= {each.get_name() for each in table.get_symbols() if each.is_referenced() and (top or each.is_global())}
        tables += table.get_children()
    return (names | set(_annotated(ast.walk(statement)))) - vars(builtins).keys()


def _annotated(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names in annotations, which may be strings."""
    for node in nodes:
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = next(iter(_parse(annotation.value)), None)
        if annotation is not None:
            yield from (each.id for each in ast.walk(annotation) if isinstance(each, ast.Name))


def _check_class(recipe: type[Part], definitions: Sequence[ast.stmt]) -> None:
    if "<locals>" in recipe.__qualname__:
        raise ConfigError(f"{_name(recipe)} is defined inside a function: define it at the top level, or {REMEDY}")
    classes = [each for each in definitions if isinstance(each, ast.ClassDef)]
    if not classes:
        raise ConfigError(
            f"{_name(recipe)} has no class statement at the top level of the script or notebook: {REMEDY}"
        )
    if not any("part(" in ast.unparse(each) for each in classes[-1].decorator_list):
        raise ConfigError(
            f"{_name(recipe)} is not registered by a decorator: write @part({recipe.name!r}) above the class"
        )
