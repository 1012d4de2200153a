"""Small files are replaced as a whole, whatever interrupts the write."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from lakehouse.common.state_files import drafts_of, make_home, make_private, write_whole


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "größe.json"
    for text in ("first\r\nsecond €", ""):
        write_whole(file, text)
        assert file.read_bytes() == text.encode()
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_leaves_the_file_as_it_was_and_is_named(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk."""
    file = tmp_path / "tokens.json"
    write_whole(file, "before")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_whole(file, "after")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(file))
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_process_leaves_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_given: object, **_named: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "host-7.json"
    write_whole(tmp_path / "host-71.json", "of another")
    monkeypatch.setattr(Path, "replace", killed)
    monkeypatch.setattr(Path, "unlink", lambda _path, **_named: None)
    with pytest.raises(KeyboardInterrupt):
        write_whole(file, "half")
    (draft,) = drafts_of(file)
    assert draft.read_text() == "half"
    assert not file.exists()


def test_one_that_lasts_is_on_the_disk_before_it_has_its_name_and_so_is_the_name_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, done = tmp_path / "tokens.json", list[tuple[str, bool]]()

    def fsync(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        done.append((kind, file.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(file, "secret", lasting=True, mode=0o600)
    assert done == [("file", False), ("directory", True)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    write_whole(file, "secret")
    assert len(done) == 2


def mode_of(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


def test_a_home_and_what_is_made_in_it_is_the_owners_alone(tmp_path: Path) -> None:
    make_private(tmp_path / "parent" / "home" / "logs")
    assert [mode_of(tmp_path / "parent" / "home" / name) for name in ("", "logs")] == ["700", "700"]


def test_a_home_that_is_there_stays_as_it_is_and_what_is_made_in_it_is_closed(tmp_path: Path) -> None:
    """It may be a user's directory that contains other files."""
    home, logs = tmp_path / "home", tmp_path / "home" / "logs"
    for place in (home, logs):
        place.mkdir()
        place.chmod(0o755)
    make_home(home)
    make_private(logs)
    assert (mode_of(home), mode_of(logs)) == ("755", "700")
