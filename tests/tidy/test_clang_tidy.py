"""Which files `make lint-changed` looks at, and that it finds what it is for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import clang_tidy


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a tag, a commit after it, and files that are not committed."""

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    for name in ("csrc/base/old.cpp", "csrc/base/kept.h", "csrc/base/gone.cpp", "csrc/io/user.cpp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('#include "base/kept.h"\n')
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    git("tag", "v1")
    (tmp_path / "csrc/base/gone.cpp").unlink()
    (tmp_path / "csrc/base/kept.h").write_text("int changed;\n")
    git("add", ".")
    git("commit", "-qm", "two")
    (tmp_path / "csrc/io/new.cpp").write_text("int i;\n")
    (tmp_path / "csrc/io/notes.txt").write_text("no C++\n")
    monkeypatch.setattr(clang_tidy, "ROOT", tmp_path)
    return tmp_path


def test_what_changed_since_the_last_tag(checkout: Path) -> None:
    assert clang_tidy.default_base() == "v1"
    assert clang_tidy.changed_since("v1") == ["csrc/base/kept.h", "csrc/io/new.cpp"]
    assert clang_tidy.changed_since("HEAD") == ["csrc/io/new.cpp"]
    with pytest.raises(SystemExit, match="no commit 'v9'"):
        clang_tidy.changed_since("v9")


def test_a_header_is_checked_through_a_file_that_includes_it(checkout: Path) -> None:
    assert clang_tidy.units_of(["csrc/base/kept.h", "csrc/io/new.cpp"]) == ["csrc/base/old.cpp", "csrc/io/new.cpp"]
    (checkout / "csrc/base/kept.cpp").write_text("")
    assert clang_tidy.units_of(["csrc/base/kept.h"]) == ["csrc/base/kept.cpp"]
    (checkout / "csrc/base/kept.h").write_text('#include "base/deep.h"\n')
    (checkout / "csrc/base/deep.h").write_text('#include "base/kept.h"\n')
    assert clang_tidy.units_of(["csrc/base/deep.h"]) == ["csrc/base/kept.cpp"]


def test_a_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(clang_tidy.ROOT / ".clang-tidy", tmp_path)
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/base.h").write_text("struct Base { virtual void f(); virtual ~Base(); };\n")
    (tmp_path / "csrc/bad.cpp").write_text('#include "base.h"\nstruct Bad : Base { virtual void f(); };\n')
    (tmp_path / "csrc/good.cpp").write_text('#include "base.h"\nstruct Good : Base { void f() override; };\n')
    entries = [
        f'{{"directory": "{tmp_path}", "file": "csrc/{name}.cpp", "command": "g++ -std=c++23 -c csrc/{name}.cpp"}}'
        for name in ("bad", "good")
    ]
    (tmp_path / "compile_commands.json").write_text(f"[{','.join(entries)}]")
    monkeypatch.setattr(clang_tidy, "ROOT", tmp_path)
    monkeypatch.setattr(clang_tidy, "DATABASE", tmp_path)
    clean, said = clang_tidy.check("csrc/bad.cpp", "^$")
    assert not clean and "modernize-use-override" in said and "csrc/bad.cpp:2:" in said
    assert clang_tidy.check("csrc/good.cpp", "^$") == (True, "")
