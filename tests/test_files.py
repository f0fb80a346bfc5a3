"""Files that are read within bounds, and written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from weft import files
from weft.errors import BadInput
from weft.files import read_text, write_folder, write_text, writing


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "not a text file in UTF-8"),
        (b"name\n\x1b[31mred", "line 2 holds the control character 0x1b"),
        (b"a\x00", "0x00"),
        ("\x9b".encode(), "0x9b"),
        (b"x" * 101, "larger than 100 bytes"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=words):
        read_text(path, largest=100)


def test_a_mark_goes_and_control_characters_of_texts_stay(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfa\tb\r\n\x0c\x1b")
    assert read_text(path, raw=True) == "a\tb\r\n\x0c\x1b"


@pytest.mark.parametrize("path", ["absent", ".", "a\0b", "x" * 100_000, "absent/below"])
def test_what_is_no_file(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"no such file|cannot be read"):
        read_text(path)
    if path != "absent":
        with pytest.raises(BadInput, match="cannot be written"):
            write_text(path, "")


def test_a_file_that_fails_halfway_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")

    def half(error: Exception) -> None:
        with writing(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(RuntimeError):
        half(RuntimeError())
    with pytest.raises(BadInput, match="No space left"):
        half(OSError(28, "No space left on device"))
    assert (path.read_text(), names(tmp_path)) == ("old", ["file"])


def test_a_full_device_is_told() -> None:
    with pytest.raises(BadInput, match="No space left"):
        write_text("/dev/full", "x")


def test_a_file_keeps_its_mode_and_a_link_its_place(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    write_text(path, "old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~(os.umask(0o22) or os.umask(0o22))
    path.chmod(0o640)
    link.symlink_to("file")
    write_text(link, "new")
    assert link.is_symlink()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(files, "_EXCHANGE", 1 << 30)  # no such flag: as on systems that cannot
    folder = tmp_path / "out"
    write_folder(folder, {"a": b"1", "below/b": b"2"})
    write_folder(folder, {"a": b"3", "below/b": b"4"})
    assert names(tmp_path) == ["out/a", "out/below/b"]
    assert (folder / "a").read_bytes() + (folder / "below/b").read_bytes() == b"34"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_of_others_are_not_lost(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(BadInput, match=r"holds thesis\.txt"):
        write_folder(tmp_path, {"a": b"1"})
    with pytest.raises(BadInput, match="is not a folder"):
        write_folder(tmp_path / "thesis.txt", {"a": b"1"})
    with pytest.raises(BadInput, match="No such file"):
        write_folder(tmp_path / "absent" / "below", {"a": b"1"})
    assert names(tmp_path) == ["thesis.txt"]


def crashes(*arguments: object) -> list[dict[str, object]]:
    """What ``crashes.py`` saw, in a process of its own: it forks, which one with threads must not."""
    command = [sys.executable, str(Path(__file__).parent / "crashes.py"), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_program_killed_before_any_line_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    found = crashes("lines", tmp_path)
    assert {one["what"] for one in found if one["old"]} == {"file", "folder"}
    assert {one["what"] for one in found if one["new"]} == {"file", "folder"}
    assert [one for one in found if not one["old"] and not one["new"]] == []


@pytest.mark.slow
def test_verbs_killed_on_a_full_disk_or_in_a_read_only_folder_leave_the_old_or_the_new(tmp_path: Path) -> None:
    found = crashes("verbs", tmp_path, 1, 10)
    kills = Counter(one["what"] for one in found if one["how"] == "killed")
    assert len(kills) > 10
    assert set(kills.values()) == {10}
    assert [one for one in found if not one["old"] and not one["new"]] == []
    assert any(one["new"] for one in found)
    assert {one["how"] for one in found} == {"killed", "full disk", "read-only folder"}
    assert all(one["old"] for one in found if one["how"] != "killed")
