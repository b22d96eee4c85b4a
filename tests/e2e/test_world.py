"""What becomes of the tests that need a cluster of their own on a machine that cannot have one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.world import world


@pytest.mark.parametrize("lacking", ["programs", "rights"])
@pytest.mark.parametrize(("no_skip", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_what_the_machine_cannot_do_is_skipped_only_where_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch, lacking: str, no_skip: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("HPD_NO_SKIP", no_skip)
    if lacking == "programs":
        monkeypatch.setattr("shutil.which", lambda name: None)
    else:
        monkeypatch.setattr("tests.e2e.world._ENTER", ["false"])
    either = (pytest.skip.Exception, pytest.fail.Exception)  # a skip that is not caught would skip this test
    with pytest.raises(either, match=r"^needs ") as caught, world():
        pass
    assert caught.type is outcome


def test_continuous_integration_does_not_allow_it(repository: Path) -> None:
    [line] = re.findall(r"^export HPD_NO_SKIP=.*$", (repository / ".ci/run").read_text(), re.MULTILINE)
    assert line == 'export HPD_NO_SKIP="${HPD_NO_SKIP-1}"'
