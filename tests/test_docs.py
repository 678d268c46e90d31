"""The pages tell the truth: their code runs, prints what stands below it, and what they point to exists.

A page is Markdown. Its ```python blocks share one namespace and run in order. A ```text block right after one is
what it prints, to the letter; a block that prints something has such a text block. Warnings are errors.
"""

import contextlib
import io
import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*DOCS, *ROOT.glob("README.md")]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$\n?(?:\s*^```text\n(.*?)^```$)?", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:minitx|docs|tests|examples)/[\w/.]+\.\w+)`")


def name_of(page):
    return str(page.relative_to(ROOT))


def code_blocks(text):
    """(first line, source, what it should print or None) of every python block of a page."""
    for fence in FENCE.finditer(text):
        language, source, printed = fence.groups()
        if language == "python":
            yield text.count("\n", 0, fence.start(2)), source, printed


def run(text, page="page"):
    """Run the blocks of a page; how many. Raises what a block raises, and AssertionError for a wrong output."""
    namespace, blocks = {"__name__": "docs_page"}, list(code_blocks(text))
    for line, source, printed in blocks:
        code = compile("\n" * line + source, page, "exec")          # so that a traceback shows the page's own line
        with contextlib.redirect_stdout(io.StringIO()) as out, warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(code, namespace)
        assert out.getvalue() == (printed or ""), f"{page}, the block at line {line + 1} prints:\n{out.getvalue()}"
    return len(blocks)


def prose(text):
    """A page without its code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def headings(text):
    """The anchors of a page, as code hosts make them of its headings."""
    titles = re.findall(r"^#+ (.*)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


def dead_links(text, page):
    """The relative links of a page, and the project's files that it names, which lead nowhere."""
    dead = [name for name in FILE.findall(text) if not (ROOT / name).exists()]
    for link in LINK.findall(prose(text)):
        if re.match(r"\w+:", link):                                 # https:, mailto:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).read_text("utf-8") if anchor and (page.parent / path).is_file() else text
        if (path and not (page.parent / path).exists()) or (anchor and anchor not in headings(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    count = run(page.read_text("utf-8"), name_of(page))
    assert count or page.name in ("index.md", "README.md"), "a page shows at least one thing that runs"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    assert dead_links(page.read_text("utf-8"), page) == []


def test_every_page_can_be_reached_from_the_index():
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text("utf-8"))}
    assert set(DOCS) - linked == {index}


def test_the_pages_that_docstrings_name_exist():
    named = {(source.name, page) for source in (ROOT / "minitx").rglob("*.py")
             for page in re.findall(r"docs/[\w/]+\.md", source.read_text("utf-8"))}
    assert len(named) >= 7
    assert [(source, page) for source, page in sorted(named) if not (ROOT / page).exists()] == []


# the checks above, tried on pages that are wrong

GOOD = "Words.\n\n```python\nx = 2\nprint(x + 1)\n```\n\n```text\n3\n```\n\n```python\nassert x == 2\n```\n"


def test_a_good_page_passes():
    assert run(GOOD) == 2


@pytest.mark.parametrize("wrong", [
    GOOD.replace("3\n", "4\n"),                                     # another number than the one printed
    GOOD.replace("```text\n3\n```\n", ""),                          # prints, and shows nothing
    GOOD.replace("print(x + 1)", ""),                               # shows, and prints nothing
    GOOD.replace("x == 2", "x == 3"),                               # a claim in the code that does not hold
], ids=["wrong output", "no output shown", "nothing printed", "wrong claim"])
def test_a_wrong_page_fails(wrong):
    with pytest.raises(AssertionError):
        run(wrong)


@pytest.mark.parametrize(("code", "error"), [
    ("import numpy as np\nnp.log(np.zeros(1))", RuntimeWarning),    # warnings are errors
    ("y", NameError),
    ("x =", SyntaxError),
])
def test_a_page_whose_code_breaks_fails(code, error):
    with pytest.raises(error):
        run(f"```python\n{code}\n```\n")


def test_dead_links_are_found():
    page = ROOT / "docs" / "index.md"
    text = ("# One title\n[a](nowhere.md) [b](index.md#no-such-heading) [c](#one-title) [d](#another) [e](index.md) "
            "[f](https://example.org) `minitx/no_such_file.py` `minitx/op.py`")
    assert dead_links(text, page) == ["minitx/no_such_file.py", "nowhere.md", "index.md#no-such-heading", "#another"]
