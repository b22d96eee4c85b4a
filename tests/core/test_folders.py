"""What is said of folders that cannot be written, without writing."""

from __future__ import annotations

import os
import shutil

import pytest

from hpd_core import folders, gguf
from hpd_core.folders import unwritable
from hpd_core.model_spec import ModelSpec
from hpd_core.settings import SettingsError
from hpd_core.source import check_loadable, locate


def test_a_folder_is_judged_by_its_nearest_part_that_exists(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    assert unwritable(tmp_path) == unwritable(tmp_path / "a/b") == unwritable(tmp_path.relative_to(tmp_path)) == ""
    assert unwritable(tmp_path / "file/a/b") == unwritable(tmp_path / "file") == f"{tmp_path}/file is no folder"
    assert unwritable(tmp_path / "dangling/a") == f"{tmp_path}/dangling is no folder"
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert unwritable(tmp_path) == f"{tmp_path} is not writable"
    assert unwritable(tmp_path / "a/b") == f"{tmp_path} is not writable, so that it cannot be made"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dangling", "file"]


@pytest.mark.parametrize("ask", [lambda spec: check_loadable(spec), lambda spec: locate(spec)])
def test_a_cache_that_cannot_be_written_is_named_with_what_moves_it(tmp_path, monkeypatch, ask):
    model = tmp_path / "x.gguf"
    model.write_bytes(b"no GGUF at all")
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(model / "cache"))
    with pytest.raises(SettingsError, match=rf"x\.gguf are unpacked into {model}/cache/hpd-gguf, .* set HF_HOME to"):
        ask(ModelSpec(str(model)))


def test_what_a_killed_process_has_left_is_removed_and_others_may_read_what_was_made(tmp_path):
    folder, other = tmp_path / "cache/model-1", tmp_path / "cache/.filling-model-1-about"

    def killed(work):
        (work / "half").touch()
        shutil.copytree(work, left, dirs_exist_ok=True)  # as a process leaves it that does not come to its end
        raise KeyboardInterrupt

    left = tmp_path / "left"
    with pytest.raises(KeyboardInterrupt):
        folders.made_once(folder, killed, "m")
    assert not [p for p in folder.parent.iterdir() if p.is_dir()]
    shutil.copytree(left, folder.parent / ".filling-model-1")
    other.mkdir()  # of another folder, which another process may be filling
    before = os.umask(0o022)
    try:
        made = folders.made_once(folder, lambda work: (work / "all").touch(), "m")
    finally:
        os.umask(before)
    assert [p.name for p in made.iterdir()] == ["all"] and made.stat().st_mode & 0o777 == 0o755
    assert sorted(p.name for p in folder.parent.iterdir() if p.is_dir()) == [other.name, "model-1"]


def test_what_is_unpacked_already_needs_no_cache_that_can_be_written(tmp_path, monkeypatch):
    model = tmp_path / "x.gguf"
    model.touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(gguf, "_fill", lambda file, folder: (folder / "config.json").write_text("{}"))
    unpacked = locate(ModelSpec(str(model))).path
    assert [p.name for p in (tmp_path / "cache/hpd-gguf").iterdir() if p.is_dir()] == [os.path.basename(unpacked)]
    monkeypatch.setattr(folders, "unwritable", lambda folder: "read-only")
    check_loadable(ModelSpec(str(model)))
    assert locate(ModelSpec(str(model))).path == unpacked
