"""Who else may change a file, judged by its owner, mode, group and directory. Root runs these tests."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from lakehouse.common.ownership import ForeignError, foreign, read_own

MINE, ANOTHER = 41_001, 41_002
DAEMON = 1  # a group that is no user's own


def made(directory: Path, owner: int = 0, mode: int = 0o644, group: int = 0) -> Path:
    path = directory / "own.toml"
    path.write_text("x = 1")
    os.chown(path, owner, group)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("user", "file"),
    [
        (0, (0, 0o644, 0)),
        (0, (0, 0o664, 0)),  # only root is in group root
        (0, (0, 0o644, DAEMON)),
        (MINE, (0, 0o600, 0)),
        (MINE, (MINE, 0o644, MINE)),
    ],
)
def test_a_file_of_the_user_or_of_root_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, file: tuple[int, int, int]
) -> None:
    path = made(tmp_path, *file)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert read_own(path) == b"x = 1"


@pytest.mark.parametrize(
    ("user", "file", "reason"),
    [
        (0, (ANOTHER, 0o644, 0), "the owner is user 41002, but this process runs as root (0)"),
        (MINE, (ANOTHER, 0o400, 0), "the owner is user 41002, but this process runs as user 41001"),
        (0, (0, 0o646, 0), "anyone can write to it (mode 0646)"),
        (0, (0, 0o664, DAEMON), "group daemon can write to it (mode 0664)"),
        (MINE, (MINE, 0o620, 41_003), "group 41003 can write to it (mode 0620)"),
    ],
)
def test_a_file_that_somebody_else_may_change_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, file: tuple[int, int, int], reason: str
) -> None:
    path = made(tmp_path, *file)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(ForeignError) as refused:
        read_own(path)
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("owner", "mode", "reason"),
    [
        (0, 0o755, None),
        (0, 0o1777, None),  # like /tmp: nobody can replace another user's file
        (0, 0o777, "anyone can write to it (mode 0777)"),
        (ANOTHER, 0o755, "the owner is user 41002, but this process runs as root (0)"),
        (ANOTHER, 0o1777, "the owner is user 41002, but this process runs as root (0)"),
    ],
)
def test_the_directory_of_a_file_counts(tmp_path: Path, owner: int, mode: int, reason: str | None) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    path = made(directory)
    os.chown(directory, owner, 0)
    directory.chmod(mode)
    if reason is None:
        assert read_own(path) == b"x = 1"
        return
    with pytest.raises(ForeignError) as refused:
        read_own(path)
    assert str(refused.value) == f"others can change its directory {directory}: {reason}"


def test_a_directory_of_modules_is_nobodys_own_if_it_is_sticky(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert foreign(tmp_path) == "anyone can write to it (mode 1777)"


def test_a_link_of_somebody_else_leads_nowhere(tmp_path: Path) -> None:
    path, link = made(tmp_path), tmp_path / "shared" / "link.toml"
    link.parent.mkdir()
    link.parent.chmod(0o1777)
    link.symlink_to(path)
    assert read_own(link) == b"x = 1"

    os.chown(link, ANOTHER, 0, follow_symlinks=False)
    with pytest.raises(ForeignError, match="the owner is user 41002"):
        read_own(link)


def test_the_directory_to_which_a_link_leads_counts_too(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    path, link = made(tmp_path / "shared"), tmp_path / "link.toml"
    link.symlink_to(path)
    path.parent.chmod(0o777)
    with pytest.raises(ForeignError, match=f"others can change its directory {path.parent}: anyone can"):
        read_own(link)


def test_an_access_list_gives_others_what_the_mode_says_of_the_group(tmp_path: Path) -> None:
    path = made(tmp_path, mode=0o664)
    nobody, entry = 0xFFFFFFFF, struct.Struct("<HHI")
    entries = ((1, 6, nobody), (2, 6, ANOTHER), (4, 4, nobody), (16, 6, nobody), (32, 4, nobody))
    packed = struct.pack("<I", 2) + b"".join(entry.pack(*one) for one in entries)
    os.setxattr(path, "system.posix_acl_access", packed)
    with pytest.raises(ForeignError, match=r"group root can write to it \(mode 0664\)"):
        read_own(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "own.toml")
    with pytest.raises(OSError, match="it is not a regular file"):
        read_own(tmp_path / "own.toml")
