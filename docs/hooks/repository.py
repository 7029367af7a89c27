"""Links from the documentation to the repository's own files lead to pages of the site: a spec, an example, a table of results.

A page links to `../spec/mesa.py` as a reader of the repository does. Here each such file becomes a page
(`repository/spec/mesa.py.md`), or lies beside the pages where it isn't text, and the links are written anew. So the site needs
no network, and no link leads nowhere.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\[[^\]]*\]\()(?![a-z]+:|#)([^)\s#]+)")
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".cff": "yaml",
    ".yml": "yaml",
    ".txt": "text",
    ".jinja": "jinja",
    "": "text",
}
FOLDER = "repository"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file of the repository that the navigation or a page names, and what those link to."""
    for uri in named(config.nav or []):
        if uri.startswith(f"{FOLDER}/") and not files.get_file_from_path(uri):
            files.append(generated(place(uri), uri, config))
    waiting = [f for f in files.documentation_pages() if not f.src_uri.startswith("reference/")]
    while waiting:
        page = waiting.pop()
        for target in targets(page.content_string, place(page.src_uri)):
            uri = address(target)
            if target.startswith("docs/") or files.get_file_from_path(uri) or not (ROOT / target).exists():
                continue
            added = generated(target, uri, config)
            files.append(added)
            if added.is_documentation_page() and target.endswith(".md"):
                waiting.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links from page to page, as the site has them."""
    here, uri = place(page.file.src_uri), page.file.src_uri

    def moved(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), found[2]))
        if target.startswith("..") or not (ROOT / target).exists():
            return found[0]  # MkDocs says that it leads nowhere
        return found[1] + posixpath.relpath(address(target), posixpath.dirname(uri))

    return LINK.sub(moved, markdown)


def named(nav: Any) -> Iterator[str]:
    """The pages that the navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from named(item)


def targets(text: str, here: str) -> Iterator[str]:
    for _, target in LINK.findall(text):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(here), target))


def place(uri: str) -> str:
    """Where the repository has what the site has at `uri`."""
    if not uri.startswith(f"{FOLDER}/"):
        return f"docs/{uri}"
    inside = uri.removeprefix(f"{FOLDER}/")
    return inside if (ROOT / inside).exists() else inside.removesuffix(".md")


def address(target: str) -> str:
    """Where the site has a file or folder of the repository."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    path = ROOT / target
    shown_as_page = path.is_dir() or (path.suffix in LANGUAGES and path.name != "README.md")
    return f"{FOLDER}/{target}{'.md' if shown_as_page else ''}"


def generated(target: str, uri: str, config: MkDocsConfig) -> File:
    """A file of the repository as a page, or as it is."""
    path = ROOT / target
    head = "---\nsearch:\n  exclude: true\n---\n\n"
    if path.is_dir():
        names = sorted(f"{p.name}/" if p.is_dir() else p.name for p in path.iterdir() if p.name[0] not in "_.")
        return File.generated(config, uri, content=f"{head}# {target}/\n\n" + "".join(f"- `{n}`\n" for n in names))
    if path.suffix == ".md":
        return File.generated(config, uri, content=path.read_text(encoding="utf-8"))
    if path.suffix in LANGUAGES:
        text = path.read_text(encoding="utf-8")
        fence = "`" * max(3, 1 + max((len(x) for x in re.findall(r"`+", text)), default=0))
        return File.generated(
            config, uri, content=f"{head}# {target}\n\n{fence}{LANGUAGES[path.suffix]}\n{text}\n{fence}\n"
        )
    return File.generated(config, uri, abs_src_path=str(path))
