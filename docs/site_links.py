"""MkDocs hook: links between the documentation and the policy folder's README, which the site shows as policy.md."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them; a link to a file that the site does not have becomes its text."""
    markdown = markdown.replace("](../policies/README.md", "](policy.md")
    if page.file.src_uri == "policy.md":
        markdown = markdown.replace("](../docs/", "](")
        markdown = re.sub(r"\[([^\]]+)\]\((?:examples/|planet/|schema\.json)[^)]*\)", r"\1", markdown)
    return markdown
