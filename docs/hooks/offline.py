"""Nothing of the site is fetched from a network: the one script that Material takes from a host is our own instead."""

from __future__ import annotations

from mkdocs.structure.pages import Page

FETCHED = "https://unpkg.com/iframe-worker/shim"
OWN = "javascripts/worker.js"


def on_post_template(output: str, template_name: str, **_: object) -> str:
    return output.replace(FETCHED, f"/{OWN}") if template_name == "404.html" else output


def on_post_page(output: str, page: Page, **_: object) -> str:
    return output.replace(FETCHED, "../" * page.file.dest_uri.count("/") + OWN)
