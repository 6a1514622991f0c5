"""Architecture: imports follow the order of LAYERS, startup imports no heavy package, and nothing reads pickles."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import partwise
from partwise.torch_extra import PACKAGES

ROOT = Path(partwise.__file__).parent
LAYERS = [
    "version",
    "openmp",
    "messages",
    "wrapping",
    "quoting",
    "console",
    "web_guard",
    "config",
    "torch_extra",
    "windows",
    "files",
    "json_files",
    "records",
    "machine",
    "processes",
    "drafts",
    "git",
    "run_names",
    "plots",
    "baselines",
    "comparison.stats",
    "comparison.targets",
    "comparison.measures",
    "comparison.results",
    "comparison.search",
    "comparison.design",
    "comparison.trials",
    "comparison.report",
    "comparison",
    "any_code",
    "classroom",
    "tensor_files",
    "kernels",
    "parts.roles",
    "parts.attention.mask",
    "parts.operations",
    "parts.contracts",
    "parts.layers",
    "parts.dropout",
    "parts.caches",
    "parts.attention.core",
    "parts.feed_forward.mlp",
    "parts.feed_forward.dense",  # experts compute its activations
    "parts.feed_forward.router",
    "parts.residual.wirings",  # hyper-connections are several of them
    "parts.positions.angles",
    "parts",
    "model",
    "compute",
    "tokenizers",
    "data",
    "presets",
    "checkpoint",
    "generation",
    "evaluate",
    "formats",
    "checks",
    "train",
    "harness",
    "inspection",
    "ablation",
    "scripting",
    "studies",
    "lessons.lesson",  # a concept names its lesson
    "concepts",
    "lessons",
    "studio",  # which starts processes of the command line
    "cli",
    "__init__",
    "__main__",
]
"""A module imports only from entries above its own, or from its own entry without cycles."""

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
"""Every module by its name, `model` for `partwise.model`, and `__init__` for the root."""

pytestmark = pytest.mark.promise  # whichever runs first reads every file


def layer(name: str) -> int:
    """The index of the longest entry of LAYERS that contains the module."""
    matches = [index for index, entry in enumerate(LAYERS) if f"{name}.".startswith(f"{entry}.")]
    assert matches, f"add {name} to LAYERS"
    return max(matches, key=lambda index: len(LAYERS[index]))


@cache
def read(name: str) -> tuple[frozenset[str], list[ast.Call]]:
    """The full name of every module imported anywhere in a file, including in functions and for type checking, and the
    calls."""
    names, calls = set[str](), list[ast.Call]()
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{name}: use absolute imports"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
            if node.module != "partwise":  # which the modules in it do not depend on
                names.add(node.module)
        elif isinstance(node, ast.Call):
            calls.append(node)
    return frozenset(names), calls


def packages(name: str) -> set[str]:
    return {each.partition(".")[0] for each in read(name)[0]}


def partwise_imports(name: str) -> set[str]:
    """The imported modules of partwise, `partwise.model` as `model`, without imported classes and functions."""
    names = {each.removeprefix("partwise.") for each in read(name)[0] if each.partition(".")[0] == "partwise"}
    root = any("." not in each and each not in FILES for each in names)  # `import partwise`, or a name that it defines
    return {each for each in names if each in FILES} | ({"__init__"} if root else set())


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name and its attributes."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_imports_point_upward() -> None:
    for name, path in FILES.items():
        for other in partwise_imports(name):
            if path.name == "__init__.py" and other.startswith(f"{name}."):
                continue  # re-exports
            assert layer(other) <= layer(name), f"{name} imports {other}"


def test_families_do_not_import_each_other() -> None:
    shared = [name for name in LAYERS if name.startswith("parts.")]  # what families may import
    for name in FILES:
        if name.startswith("parts."):
            others = {other for other in partwise_imports(name) if other.startswith("parts.")}
            assert others <= set(shared[: shared.index(name)] if name in shared else shared), name


def test_no_cycles() -> None:
    """Imports have no cycles, also within a folder and including imports in functions."""
    edges = {name: partwise_imports(name) - {name} for name, path in FILES.items() if path.name != "__init__.py"}
    while edges:
        free = {name for name, others in edges.items() if not others & edges.keys()}
        assert free, f"these modules import each other in a cycle: {sorted(edges)}"
        edges = {name: others for name, others in edges.items() if name not in free}


def test_files_are_short() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in FILES.items()}
    assert not {name: count for name, count in lines.items() if count > 350}


def test_nothing_reads_pickles_or_evaluates_strings() -> None:
    unsafe = {"pickle", "dill", "joblib", "shelve", "marshal", "cloudpickle", "eval", "exec", "compile", "__import__"}
    unsafe |= {"torch.load", "torch.save", "numpy.load", "np.load", "yaml.unsafe_load"}
    for name in FILES:
        assert not packages(name) & unsafe, name
        for call in read(name)[1]:
            called = dotted(call.func)
            assert called not in unsafe, f"{name}: {called}"
            if called == "yaml.load":  # only with our safe loader
                assert [ast.unparse(each.value) for each in call.keywords if each.arg == "Loader"] == ["_Yaml"]


READERS = ("open", "read_text", "read_bytes")
BARE_READS = {
    # the readers that refuse pipes, devices and files without end
    ("config.reading", "open(path, 'rb', opener=open_regular)"),
    ("config.reading", "os.open(name, flags | NO_WAIT, 438)"),
    ("files", "open(path, mode, opener=lambda name, flags: open_regular(name, flags | NO_FOLLOW), **options)"),
    (
        "files",
        "os.open(path, os.O_RDWR if sys.platform == 'win32' else os.O_RDONLY)",
    ),  # what was just written, to sync it
    ("comparison.trials.claims", "os.open(mine.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 420)"),  # only a new file
    ("classroom.files", "archive.open(entry)"),  # a member of a zip file in memory
    # files of the package
    ("lessons.answers", "answer_file(lesson).read_text(encoding='utf-8')"),
    ("lessons.answers", "path.read_text(encoding='utf-8')"),
    ("lessons.lesson", "(examples_folder() / file).read_text(encoding='utf-8')"),
    ("lessons.lesson", "path.read_text(encoding='utf-8')"),
    ("lessons.page", "lesson.path.read_text(encoding='utf-8')"),
    ("lessons.teaching", "(lessons_folder() / 'teaching.md').read_text(encoding='utf-8')"),
    ("comparison.targets.contests", "Path(__file__).with_name('contest_rules.json').read_text(encoding='utf-8')"),
    ("cli.completion", "Path(__file__).with_name('completions.json').read_text(encoding='utf-8')"),
    ("data.corpora", "TINYSHAKESPEARE_FILE.read_bytes()"),
    ("kernels.build", "file.read_text(encoding='utf-8')"),
    ("kernels.prebuilt", "path.read_text(encoding='utf-8')"),
    ("plots.layout", "folder.joinpath(name).read_text('utf-8')"),
    ("studio.pages", "files('partwise.studio').joinpath('static', name).read_bytes()"),
    # files of the system
    ("cli", "os.open(os.devnull, os.O_RDWR)"),
    ("studio.server", "webbrowser.open(page.as_uri())"),  # opens a browser
    ("cli.signals", "os.open(os.devnull, os.O_RDWR)"),
    ("comparison.trials.server", "os.open(os.devnull, os.O_WRONLY)"),
    ("comparison.trials.execution", "os.open(os.devnull, os.O_RDWR)"),
    ("machine", "(topology / name).read_text(encoding='utf-8')"),
    ("machine", "Path('/proc/cpuinfo').read_text(encoding='utf-8', errors='replace')"),
    ("machine", "open('/proc/cpuinfo', encoding='utf-8', errors='replace')"),
    ("machine", "Path('/proc/meminfo').read_text(encoding='utf-8')"),
    ("machine", "(folder / name).read_text(encoding='utf-8')"),
}
"""Calls that open a file by themselves: none of them has a name that a user gives, or that a file of others contains."""


def test_files_that_users_name_are_read_by_the_reader_that_refuses_pipes() -> None:
    """A bare `open` waits for a pipe, and never ends for a device: use `read_file`, `open_to_read` or `open_file`."""
    found = set()
    for name in FILES:
        for call in read(name)[1]:
            called = call.func
            if (isinstance(called, ast.Name) and called.id == "open") or (
                isinstance(called, ast.Attribute) and called.attr in READERS
            ):
                found.add((name, ast.unparse(call)))
    assert found == BARE_READS


def test_text_is_read_and_written_in_utf_8() -> None:
    """Without an encoding, Python takes that of the system, and on Windows ends written lines in another way."""
    for name in FILES:
        for call in read(name)[1]:
            called = dotted(call.func).rpartition(".")[2]
            keywords = {each.arg for each in call.keywords}
            words = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            reads_text = isinstance(call.func, ast.Attribute) and called in ("read_text", "write_text")
            assert called != "write_text" or not reads_text or "newline" in keywords, f"{name}: {ast.unparse(call)}"
            if called in ("open", "fdopen", "open_file"):
                modes = [word for word in words if re.fullmatch(r"[rwxa]\+?", word)]
                named = isinstance(call.func, ast.Name) and called == "open" and len(call.args) == 1
                reads_text = bool(modes) or named
            if reads_text or (dotted(call.func).startswith("subprocess.") and "text" in keywords):
                assert "encoding" in keywords or "utf-8" in words, f"{name}: {ast.unparse(call)}"


def test_files_are_renamed_by_the_function_that_waits_for_their_readers() -> None:
    """On Windows, an open file cannot be renamed."""
    for name in FILES.keys() - {"files"}:
        for call in read(name)[1]:
            called = dotted(call.func)
            moves = called in ("os.rename", "os.replace", "shutil.move") or called.endswith(".rename")
            assert not moves, f"{name}: {ast.unparse(call)}"


def test_messages_on_stderr_are_printed_without_control_characters() -> None:
    """By `print_message`, or by a console: a bare print passes on what a name or a damaged file contains."""
    for name in FILES.keys() - {"messages"}:
        for call in read(name)[1]:
            outputs = [dotted(each.value) for each in call.keywords if each.arg == "file"]
            assert "sys.stderr" not in outputs, f"{name}: {ast.unparse(call)}"
            assert dotted(call.func) != "sys.stderr.write", f"{name}: {ast.unparse(call)}"


def test_the_yaml_loader_is_safe() -> None:
    import yaml

    from partwise.config.yaml import _Yaml, parse_value

    assert issubclass(_Yaml, yaml.SafeLoader)
    assert parse_value("!!python/object/apply:os.getcwd []") == "!!python/object/apply:os.getcwd []"


@pytest.mark.parametrize("name", ["config", "config.parts", "config.yaml", "config.overrides"])
def test_config_imports_no_torch(name: str) -> None:
    assert not packages(name) & {"torch", "numpy"}


STATS = sorted(name for name in FILES if name.startswith("comparison.stats."))


def test_stats_imports_only_config_and_itself() -> None:
    for name in STATS:
        assert partwise_imports(name) <= {*STATS, "config", "comparison.stats"}, name


INSTRUMENT = [name for name in FILES if layer(name) <= LAYERS.index("any_code")]


def test_the_instrument_imports_no_torch() -> None:
    """Plans, trials, judging, results, the ledger, certificates, reports, what runs any code, and all below, even inside
    their functions."""
    for name in INSTRUMENT:
        assert not packages(name) & set(PACKAGES), name


def test_the_instrument_stands_alone() -> None:
    """Nor does any package that it imports."""
    assert {"comparison.stats.effect", "comparison.judging", "any_code.command_comparison"} <= {*INSTRUMENT}
    imports = "; ".join(f"import partwise.{name}" for name in INSTRUMENT)
    subprocess.run([sys.executable, "-c", f"{imports}; import sys; assert 'torch' not in sys.modules"], check=True)


HEAVY = {"torch", "scipy", "matplotlib", "statsmodels", "numpy"}
HEAVY_FOR_TRAINING = {
    "scipy",
    "matplotlib",
    "statsmodels",
    "jinja2",
    "transformers",
    "sympy",
    "torch._dynamo",
    "tokenizers",
}
"""A first step may take a second beside the import of torch, which comes with numpy."""


def run_command(*words: str) -> str:
    """Code that runs `partwise` with these words."""
    return f"import runpy; sys.argv = {['partwise', *words]}; runpy.run_module('partwise', run_name='__main__')"


FIRST_STEP = """
import os
import partwise.train.loop
os.chdir(sys.argv[1])
partwise.train.loop.Run.update = lambda run: sys.exit(0)
"""
"""Code that ends a program of ours where its first training step would begin."""
TRAIN = ["train", "mingpt", "d_model=16", "--data", "shakespeare"]
WITHOUT_KERNELS = [
    f"train.{kind}_backend=eager" for kind in ("block", "attention", "ffn")
]  # whose compilation takes longer


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import partwise", HEAVY | {"pydantic"}),
        ("import partwise.config", HEAVY),
        (run_command("--help"), HEAVY | {"pydantic"}),
        ("import partwise.cli", HEAVY | {"pydantic"}),
        (run_command("compare", "--help"), HEAVY),
        (FIRST_STEP + run_command(*TRAIN, *WITHOUT_KERNELS), HEAVY_FOR_TRAINING),
    ],
    ids=["partwise", "partwise.config", "--help", "partwise.cli", "compare --help", "train"],
)
def test_startup_imports_no_heavy_package(code: str, heavy: set[str], tmp_path: Path) -> None:
    start = f"import sys, atexit; atexit.register(lambda: print('heavy:', sorted({heavy} & set(sys.modules))))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{start}\n{code}", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT.parent), "PATH": "/usr/bin:/bin", "PARTWISE_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_public_names_resolve() -> None:
    assert len(set(partwise.__all__)) == len(partwise.__all__)
    for name in partwise.__all__:
        value = getattr(partwise, name)
        # importing a subpackage of the same name would replace the function by the module
        assert not isinstance(value, ModuleType) and getattr(partwise, name) is value, name
        assert not name.startswith("_")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = partwise.nonsense
