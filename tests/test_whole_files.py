"""Files that are put in their place as a whole, or not at all."""

import os
import stat
from pathlib import Path

import pytest

from fanfold.kernel.claims import LEFTOVER
from fanfold.project_files import write_whole


def test_a_failed_replacement_keeps_the_original_and_leaves_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "there" / "held").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "there", b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["there"]


def test_a_mode_is_what_the_mask_leaves_unless_it_is_meant_exactly(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    before = os.umask(0o077)
    try:
        write_whole("masked", b"one", folder=folder, mode=0o666)
        write_whole("exact", b"two", folder=folder, mode=0o666, exactly=True, durable=True)
    finally:
        os.umask(before)
        os.close(folder)
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    assert modes == {"masked": 0o600, "exact": 0o666}


def test_leftovers_of_an_interrupted_write_have_a_name_that_merges_ignore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", cut_off)
    monkeypatch.setattr(os, "unlink", cut_off)  # as if the process had died there
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", b"new")
    assert [bool(LEFTOVER.fullmatch(one.name)) for one in tmp_path.iterdir()] == [True]
