"""The tree of docs/architecture.md is complete: it lists every source file, in its folder, and no other."""

import re
from pathlib import Path

import partwise

SOURCE = Path(partwise.__file__).parent
TREE = Path(__file__).parents[1] / "docs" / "architecture.md"
ENDS = (".py", ".cpp", ".h", ".jinja")


def listed() -> set[str]:
    """The files of the tree under src/partwise, by their paths; a folder is a line that begins with `name/`."""
    tree = TREE.read_text(encoding="utf-8").split("src/partwise/\n")[1].split("```")[0]
    found: set[str] = set()
    folders: list[tuple[int, str]] = []
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            break  # tests/, benchmarks/, ...
        folders = [(depth, name) for depth, name in folders if depth < indent]
        if folder := re.match(r"([\w]+)/", line.strip()):
            folders.append((indent, folder[1]))
        prefix = "/".join(name for _, name in folders)
        found |= {f"{prefix}/{name}".lstrip("/") for name in re.findall(r"[\w.]+", line) if name.endswith(ENDS)}
    return found


def test_the_tree_lists_every_file_and_no_other() -> None:
    files = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.suffix in ENDS}
    files -= {name for name in files if name.endswith("/__init__.py")}
    assert listed() == files, sorted(listed() ^ files)


def test_the_tree_lists_folders_in_import_order() -> None:
    """The tree lists folders in the order of LAYERS, against which imports are checked."""
    from test_structure import LAYERS

    tree = TREE.read_text(encoding="utf-8").split("src/partwise/\n")[1].split("```")[0]
    top = re.findall(r"^  (\w+)(?:/|\.py )", tree, re.MULTILINE)
    placed = [name for name in LAYERS if "." not in name]  # a folder with files in several places has its own
    order = dict.fromkeys(name.split(".")[0] for name in LAYERS if name in placed or name.split(".")[0] not in placed)
    doors = ("__init__", "__main__")  # the tree begins with them
    assert [name for name in top if name not in doors] == [name for name in order if name not in doors]


def test_what_compare_returns_has_what_its_page_names() -> None:
    from partwise.comparison.experiment import Comparison

    page = (TREE.parent / "python.md").read_text(encoding="utf-8")
    names = re.findall(r"`comparison\.([\w.]+)`", page)
    assert names == ["verdicts", "results.effects", "report"]
    assert all(isinstance(getattr(Comparison, name.split(".")[0]), property) for name in names)


def test_the_tree_of_readme_names_every_folder() -> None:
    readme = (TREE.parents[1] / "README.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"```text\nsrc/partwise/\n(.*?)^docs/", readme, re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"(\w+)/", tree))
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert named == folders
