"""Every page can be read anywhere, and every link and path in it leads somewhere."""

from __future__ import annotations

import ast
import re

_LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_relative_links_resolve(pages):
    broken = []
    for page in pages.values():
        for link in _LINK.findall(page.prose):
            if link.startswith(("http://", "https://", "mailto:")):
                continue
            path, _, anchor = link.partition("#")
            target = (page.path.parent / path).resolve() if path else page.path
            if not target.exists():
                broken.append(f"{page.name}: {link}")
                continue
            other = next((one for one in pages.values() if one.path == target), None)
            if anchor and (other is None or anchor not in other.anchors):
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_the_index_leads_to_every_page(pages, root):
    index = pages["docs/index.md"]
    linked = {
        (index.path.parent / link.partition("#")[0]).resolve()
        for link in _LINK.findall(index.prose)
    }
    below = {page.path for page in pages.values() if root / "docs" in page.path.parents}
    assert below - linked - {index.path} == set()


def test_pages_are_plain_ascii(pages):
    assert [page.name for page in pages.values() if not page.text.isascii()] == []


def test_paths_in_the_file_tree_of_the_readme_exist(pages, root):
    [tree] = [block for block in pages["README.md"].blocks("text") if "aurora_core/  " in block]
    missing, folder = [], ""
    for line in tree.splitlines():
        name, purpose = line.split(maxsplit=1)
        assert purpose, line
        if not line.startswith(" "):
            folder = name if name.endswith("/") else ""
        path = root / (folder + name if line.startswith(" ") else name)
        if not path.exists():
            missing.append(str(path))
    assert missing == []


def test_the_readme_keeps_a_place_for_a_real_run(pages):
    text = pages["README.md"].text
    opening, closing = "<!-- quickstart-output -->", "<!-- /quickstart-output -->"
    assert text.count(opening) == text.count(closing) == 1
    assert text.index(opening) < text.index(closing)


def test_python_examples_are_python(pages):
    for page in pages.values():
        for block in page.blocks("python"):
            ast.parse(block, filename=page.name)
