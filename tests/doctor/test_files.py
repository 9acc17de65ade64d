"""Files that appear whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from volta_doctor.files import write


def test_mode_and_link_stay(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write(link, b"new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(tmp_path.iterdir()) == [link, real]


def test_a_new_file_has_the_usual_mode(tmp_path):
    write(tmp_path / "new", b"x")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~umask


def test_nothing_is_left_of_a_failed_one(tmp_path, monkeypatch):
    target = tmp_path / "x"
    target.write_text("old")
    monkeypatch.setattr("os.fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(target, b"new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_trap_beside_the_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("old")
    (tmp_path / f".x.{os.getpid()}.part").symlink_to(victim)
    write(tmp_path / "x", b"new")
    assert victim.read_text() == "old"
    assert not (tmp_path / "x").is_symlink()


def test_a_pipe_is_written_to(tmp_path):
    reader, writer = os.pipe()
    write(Path(f"/dev/fd/{writer}"), b"x")
    os.close(writer)
    assert os.read(reader, 9) == b"x"
    os.close(reader)
