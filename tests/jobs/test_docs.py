"""README and docs: every command line is one that exists, every link leads somewhere, every page can be found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from jobs.cli import app
from tests.jobs.written import Block, anchors, blocks, links

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
PAGES = [README, *sorted((REPOSITORY / "docs").rglob("*.md")), *sorted((REPOSITORY / "conf").rglob("*.md"))]
#: What `make example-report` makes.
GENERATED = {"report.html", "report.md", "report.json", "report.png"}


def lines(program: str) -> Iterator[tuple[Path, list[str]]]:
    """(page, words after the program) of the command lines of a program. Where several stand in one line, each."""
    for page in PAGES:
        for words in (words for block in blocks(page) for words in block.commands):
            while program in words:
                words = words[words.index(program) + 1 :]
                ends = [n for n, word in enumerate(words) if word in ("|", "&&", ";", ">", "2>", "||")]
                yield page, words[: ends[0]] if ends else words


def test_the_pages_have_commands() -> None:
    assert len(list(lines("hpd"))) > 60 and len(list(lines("make"))) >= 4


@pytest.mark.parametrize(
    ("page", "words"), list(lines("hpd")), ids=lambda part: part.stem if isinstance(part, Path) else " ".join(part)
)
def test_a_command_line_of_the_docs_is_one_that_exists(
    page: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options, their types, and what must be given; the files need not be there."""
    monkeypatch.chdir(REPOSITORY)
    # What is in brackets may be left out, and must exist all the same.
    name, *arguments = [word.strip("[]") for word in words]
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    while hasattr(command, "commands"):
        name, *arguments = arguments
        command = command.commands[name]
    command.make_context(name, arguments)  # raises where an option does not exist


def test_make_has_the_targets_that_the_docs_name() -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert {words[0] for _, words in lines("make")} <= targets
    told = {name for page in PAGES for name in re.findall(r"`make ([\w-]+)", page.read_text(encoding="utf-8"))}
    assert told and told <= targets


def test_a_command_with_a_stray_quote_is_no_prose() -> None:
    assert Block("", "the reader's rows\nmake run # it's short\n").commands == [["make", "run"]]
    for line in ("hpd extract --set 'a=b", "make test ARGS='-k x"):
        with pytest.raises(ValueError, match=f"No closing quotation in the command line: {line}"):
            _ = Block("", f"{line}\n").commands


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("airflow-test", ["docs/airflow.md", "tests/e2e/test_airflow.py"]),
        ("example-report", ["docs/example-report/README.md", "docs/example-report/make.sh"]),
        ("gpu", ["docs/performance.md", "jobs/timing/gpu.py"]),
    ],
)
def test_the_makefile_and_the_pages_tell_the_same_minutes(target: str, told: list[str]) -> None:
    about = re.search(rf"^# make {target} .*?(?=^# make |^#$)", (REPOSITORY / "Makefile").read_text(), re.M | re.S)
    assert about is not None
    [minutes] = re.findall(r"((?:about|under|\d+ to) \d+ minutes)", " ".join(about[0].replace("#", "").split()))
    for name in told:
        text = " ".join((REPOSITORY / name).read_text(encoding="utf-8").replace("#", "").split())
        assert minutes in text.replace("Under", "under").replace("About", "about"), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    missing = [path for path in links(page) if not path.exists() and path.name not in GENERATED]
    assert missing == []
    for target, anchor in re.findall(r"\]\(([^()\s#]*)#([\w-]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert anchor in anchors((page.parent / target).resolve() if target else page), f"{target}#{anchor}"


def test_every_page_is_in_the_readmes_list() -> None:
    listed = links(README)
    pages = {path.resolve() for path in (REPOSITORY / "docs").glob("*.md")}
    assert pages - listed == set()
