"""The documentation's links between pages and to headings, and the length of its sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "docker", "docs", "examples", "k8s", "tests")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
LONGEST_SENTENCE_WORDS = 30
LONG_SENTENCES_SHARE = 0.03


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if re.match(r"\w+:", link):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_pages_are_found() -> None:
    assert len(PAGES) > 20


def sentences(page: Path) -> list[str]:
    """Return the sentences of a page, without code, tables and headings; each item of a list starts a sentence."""
    text = re.sub(r"```.*?```", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^\s*(\|.*|#.*|[-*] |\d+\. )", ". ", text, flags=re.MULTILINE)
    return [sentence for sentence in re.split(r"(?<=[.!?:])\s+", text) if sentence.strip(" .")]


def test_few_sentences_are_long() -> None:
    written = [sentence for page in PAGES for sentence in sentences(page)]
    long = [sentence for sentence in written if len(sentence.split()) > LONGEST_SENTENCE_WORDS]
    assert len(long) <= LONG_SENTENCES_SHARE * len(written), "\n".join(long)
