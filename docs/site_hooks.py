"""Hooks of mkdocs: adapt the pages, which are written to be read on GitHub too, for the site.

- README, CONTRIBUTING, SECURITY and CHANGELOG become pages under project/.
- Other files of the repository that pages link to are copied to repository/.
- reference.md lists the public names in tables. The reference of the names of each table is a page api/TOPIC.md, to
  which the names link.
- Search leaves out decisions and the changelog, which name everything and answer nothing that is asked there.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parent.parent
PROJECT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)(?P<path>[^)#\s]+)(?P<anchor>#[^)]*)?\)")
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"^\| `(?P<name>\w+)` \|", re.MULTILINE)
_BLOCK_LIST = re.compile(r"(^```)\n(?=- |\d+\. )", re.MULTILINE)  # Python-Markdown needs an empty line between them
_NOT_SEARCHED = ("decisions/", "project/CHANGELOG")
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the project and the files of the repository that pages link to."""
    for name in PROJECT:
        files.append(_file(config, f"project/{name}", ROOT / name, InclusionLevel.INCLUDED))
    for topic, table in _topics():
        text = f"# {topic}\n" + "".join(f"\n::: sardonyx.{name}\n" for name in _NAME.findall(table))
        files.append(File.generated(config, f"api/{topic.lower()}.md", content=text))
    for page in files.documentation_pages():
        for link in _LINK.finditer(_FENCED.sub("", page.content_string)):
            source = _source(page, link["path"])
            uri = _uri(source)
            if uri.startswith("repository/") and source.is_file() and files.get_file_from_path(uri) is None:
                files.append(_file(config, uri, source, InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at the files of the site, and insert the reference of the public names."""

    def relative(link: re.Match[str]) -> str:
        uri = _uri(_source(page.file, link["path"]))
        return f"]({os.path.relpath(uri, os.path.dirname(page.file.src_uri) or '.')}{link['anchor'] or ''})"

    def with_links(text: str) -> str:
        return _LINK.sub(relative, text)

    parts, end = [], 0
    for block in _FENCED.finditer(markdown):  # code is left as it is
        parts += [with_links(markdown[end : block.start()]), block[0].replace("```console measured", "```console", 1)]
        end = block.end()
    text = "".join([*parts, with_links(markdown[end:])]).replace("-->\n|", "-->\n\n|")  # a table after a comment
    text = _BLOCK_LIST.sub(r"\1\n\n", text)
    if page.file.src_uri == "reference.md":
        for topic, table in _topics():
            linked = _NAME.sub(rf"| [`\g<name>`](api/{topic.lower()}.md#sardonyx.\g<name>) |", table)
            text = text.replace(table, linked)
    return text


def on_post_build(config: Any) -> None:
    """Leave pages that are about the past out of the index of the search."""
    index = Path(config["site_dir"]) / "search" / "search_index.json"
    content = json.loads(index.read_text("utf-8"))
    content["docs"] = [entry for entry in content["docs"] if not entry["location"].startswith(_NOT_SEARCHED)]
    index.write_text(json.dumps(content), "utf-8")


def _topics() -> list[tuple[str, str]]:
    """Return the headings of reference.md whose tables have names with a reference, with the tables."""
    parts = (ROOT / "docs" / "reference.md").read_text("utf-8").split("\n## ")[1:]
    found = [(part.partition("\n")[0], _TABLE.search(part)) for part in parts]
    return [(topic, table[0]) for topic, table in found if table is not None and "__version__" not in table[0]]


def _source(page: File, link: str) -> Path:
    """Return the file of the repository that a link on a page leads to; a folder stands for its pyproject.toml."""
    place, _, rest = page.src_uri.partition("/")
    original = rest if place in ("project", "repository") else f"docs/{page.src_uri}"
    path = Path(os.path.normpath(ROOT / os.path.dirname(original) / link))
    return path / "pyproject.toml" if path.is_dir() else path


def _uri(path: Path) -> str:
    """Return the place of a file of the repository in the site."""
    relative = path.relative_to(ROOT).as_posix()
    if relative.startswith("docs/"):
        return relative.removeprefix("docs/")
    return f"project/{relative}" if relative in PROJECT else f"repository/{relative}"


def _file(config: Any, uri: str, source: Path, inclusion: InclusionLevel) -> File:
    return File.generated(config, uri, abs_src_path=str(source), inclusion=inclusion)
