"""The wheel holds `chunkform.*`, whole and nothing else; importing a generated op stays light."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from shared.forked import code
from shared.wheel import wheel_of

import chunkform
from chunkform.errors import HOST, page_of

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DIRECTORIES: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]  # import name -> directory


def shipped_files() -> set[str]:
    """Where each module, template, table and marker of the tree belongs in the wheel."""
    return {
        f"{package.replace('.', '/')}/{file.relative_to(ROOT / directory).as_posix()}"
        for package, directory in DIRECTORIES.items()
        for file in (ROOT / directory).rglob("*")
        if file.suffix in {".py", ".pyi", ".jinja"} or file.name == "py.typed" or file.match("tables/*.json")
    }


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return set(zipfile.ZipFile(wheel_of(tmp_path_factory)).namelist())


def test_wheel_puts_nothing_but_chunkform_into_site_packages(wheel_files: set[str]) -> None:
    top_level = {name.split("/")[0] for name in wheel_files}
    assert top_level == {"chunkform", f"chunkform-{chunkform.__version__}.dist-info"}


def test_wheel_holds_every_module_and_template(wheel_files: set[str]) -> None:
    assert {name for name in wheel_files if name.startswith("chunkform/")} == shipped_files()


def test_no_text_of_the_package_names_a_page_that_only_a_checkout_has() -> None:
    """Messages name a page by its address, `page_of`, and docstrings by its title: a wheel has no docs/."""
    page = re.compile(r"(?<![\w/])docs/\w+\.md")
    files = [file for directory in DIRECTORIES.values() for file in (ROOT / directory).rglob("*.py")]
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    named = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {node.value[:80]}"
        for file, text in texts.items()
        if page.search(text)  # in a comment, mostly
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if page.search(node.value)
    ]
    assert named == []
    pages = {p.stem for p in (ROOT / "docs").glob("*.md")}
    called = set()
    for directory in ("spec", "codegen", "runtime", "integrations"):
        for file in (ROOT / directory).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            called |= set(re.findall(r"page_of\([\"'](\w+)[\"']\)", text))
            called |= {x for group in re.findall(r"\bpages=\(([^)]*)\)", text) for x in re.findall(r'"(\w+)"', group)}
    assert called <= pages and {"claims", "papers", "from_fla"} <= called


def test_the_placeholder_of_the_public_host_is_one() -> None:
    assert PROJECT["project"]["urls"]["Repository"] == HOST and page_of("claims").startswith(HOST)


def test_every_package_is_listed() -> None:
    modules = (file for file in shipped_files() if file.endswith(".py"))
    packages = {str(Path(module).parent).replace("/", ".") for module in modules}
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    assert packages - listed == set(), "add these to packages in pyproject.toml"
    assert listed - packages == set(), "these hold no module: remove them from packages in pyproject.toml"


def test_every_package_has_an_init() -> None:
    shipped = shipped_files()
    packages = {Path(file).parent for file in shipped if file.endswith(".py")}
    assert {str(package) for package in packages if f"{package.as_posix()}/__init__.py" not in shipped} == set()


def run_python(code: str, *options: str) -> str:
    ran = subprocess.run([sys.executable, *options, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_generated_ops_load_neither_sympy_nor_jinja() -> None:
    modules = ["chunkform", "chunkform.runtime", "chunkform.generated"]
    modules += [f"chunkform.generated.{f.stem}" for f in sorted((ROOT / "generated").glob("*.py")) if f.stem[0] != "_"]
    loaded = f"import sys, {', '.join(modules)}; print(sorted({{'sympy', 'jinja2'}} & set(sys.modules)))"
    done = code(loaded)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_importing_chunkform_alone_loads_no_torch() -> None:
    assert run_python("import sys, chunkform; print('torch' in sys.modules)") == "False"


def test_unknown_attribute_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = chunkform.nonsense


def test_checkout_imports_without_an_install() -> None:
    # -S leaves out site-packages, and with them the editable install that would find the sub-packages.
    located = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import chunkform.spec; print(chunkform.spec.__file__)"
    assert Path(run_python(located, "-S")) == ROOT / "spec" / "__init__.py"


def test_public_names_are_listed() -> None:
    assert {"compile", "Recurrence", "__version__"} <= set(dir(chunkform))
    shown = "import chunkform, chunkform.errors; print(*(n for n in dir(chunkform) if n[0] != '_'))"
    assert set(run_python(shown).split()) == {n for n in chunkform.__all__ if n[0] != "_"} | {"errors"}
