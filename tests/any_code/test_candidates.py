"""Candidates: what a patch may touch, fixed files, and what is refused before anything runs."""

import re
from pathlib import Path
from typing import Any

import pytest

from partwise.any_code.candidates import check_patch
from partwise.config import ConfigError
from repositories import git
from searches import answer, commit, make_repository, ran, try_, words

CHANGE = "@@ -1,2 +1,2 @@\n-GAIN=0\n+GAIN=-200\n FAIL=\n"
NEW = "--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+{1}\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_repository(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("--- a/../outside.sh\n+++ b/../outside.sh\n" + CHANGE, "writes ../outside.sh, outside the repository"),
        ("--- /etc/passwd\n+++ /etc/passwd\n" + CHANGE, "writes /etc/passwd, outside the repository"),
        ("diff --git a/C:/x b/C:/x\n--- a/C:/x\n+++ b/C:/x\n" + CHANGE, "writes C:/x, outside the repository"),
        (
            'diff --git "a/..\\\\x" "b/..\\\\x"\n--- "a/..\\\\x"\n+++ "b/..\\\\x"\n' + CHANGE,
            r"outside the repository",
        ),
        (
            "diff --git a/settings.sh b/.git/hooks/x\nrename from settings.sh\nrename to .git/hooks/x\n",
            "writes .git/hooks/x",
        ),
        (
            "diff --git a/here b/here\nnew file mode 120000\n" + NEW.format("here", "/etc"),
            "changes a symbolic link, which is refused",
        ),
        (
            "diff --git a/sub b/sub\nnew file mode 160000\n" + NEW.format("sub", "Subproject commit " + 40 * "1"),
            "changes a submodule, which is refused",
        ),
        ("--- a/settings.sh\n+++ b/settings.sh\n@@ -1 +1 @@\n-GAIN=7\n+GAIN=8\n", "does not apply to the best"),
        ("not a patch\n", "x.patch is no patch: write the change with `git diff > x.patch`"),
        ("  \n", "x.patch is empty"),
    ],
)
def test_hostile_patches_are_refused_in_one_line(repository: Path, patch: str, reason: str) -> None:
    Path("x.patch").write_text(patch)
    done = try_("x.patch", *words(repository))
    message = str(done.exception)
    assert isinstance(done.exception, ConfigError) and reason in message and "\n" not in message
    assert not Path("../outside.sh").exists() and not Path("runs/s/tries").exists()


def test_lines_that_look_like_headers_within_a_hunk_are_content() -> None:
    check_patch(b"--- a/notes\n+++ b/notes\n@@ -1,2 +1,2 @@\n--- /etc/passwd\n+++ /etc/passwd\n same\n", "x.patch")


def test_a_commit_that_makes_a_link_is_refused_too(repository: Path) -> None:
    Path("here").symlink_to("/etc")
    linked = commit("a link")
    with pytest.raises(ConfigError, match="changes the symbolic link here, which is refused"):
        answer(repository, linked, start="HEAD~1")


def test_fixed_files_are_those_of_the_best(repository: Path) -> None:
    """Also files that a candidate adds to a fixed folder, and patches."""
    Path("data").mkdir()
    (Path("data") / "offset").write_text("0")
    start = commit("data")
    (Path("data") / "more").write_text("1")
    changed = commit("cheats", measure__sh="echo loss 0\n", settings__sh="GAIN=-300\nFAIL=\n")
    Path("x.patch").write_text(git("diff", start, changed) + "\n")
    fixed = ["measure.sh", "data/"]
    git("reset", "--quiet", "--hard", start)
    only = commit("cheats alone", measure__sh="echo loss 0\n")
    with pytest.raises(ConfigError, match=r"equals the best, \w{10}, so there is nothing to try: its changes to fixed"):
        answer(repository, only, start=start, fixed=fixed)

    tried = answer(repository, changed, start=start, fixed=fixed)
    assert "its changes to fixed files (measure.sh, data) are left out" in tried.notes[0]
    listed = git("diff", "--name-only", start, tried.commit).split()
    assert listed == ["settings.sh"] and tried.decision == "keep"


def test_a_commit_on_one_that_was_kept_without_its_fixed_files_builds_on_the_best(repository: Path) -> None:
    """A branch goes on from what was given, not from the commit that ran; it does not where another patch was kept."""
    start = git("rev-parse", "HEAD")
    fixed: dict[str, Any] = {"fixed": ["measure.sh"], "start": start}
    first = commit("helps, and measures otherwise", settings__sh="GAIN=-200\nFAIL=\n", measure__sh="echo loss 0\n")
    kept = answer(repository, first, **fixed)
    assert kept.decision == "keep" and kept.commit != first and "measure.sh" in kept.notes[0]
    second = answer(repository, commit("helps more", settings__sh="GAIN=-400\nFAIL=\n"), **fixed)
    assert second.decision == "keep" and not any("build" in note for note in second.notes), second.notes
    Path("x.patch").write_text(
        "--- a/settings.sh\n+++ b/settings.sh\n@@ -1,2 +1,2 @@\n-GAIN=-400\n+GAIN=-600\n FAIL=\n"
    )
    assert answer(repository, "x.patch", **fixed).decision == "keep"
    third = answer(repository, commit("another", settings__sh="GAIN=-500\nFAIL=\n"), **fixed)
    assert any("does not build on the best" in note for note in third.notes)


def test_a_candidate_equal_to_the_best_names_what_is_not_committed(repository: Path) -> None:
    Path("settings.sh").write_text("GAIN=-1000\nFAIL=\n")
    with pytest.raises(ConfigError, match=r"equals the best.*changes that are not committed are not tried"):
        answer(repository, "HEAD")
    assert ran(repository) == [], "nothing runs for a candidate that is refused"
    with pytest.raises(ConfigError, match=re.escape("no commit, no patch file and no command")):
        answer(repository, "no-such-thing" * 1000)


def test_a_patch_is_the_same_commit_whenever_it_is_made(repository: Path) -> None:
    Path("x.patch").write_text("--- a/settings.sh\n+++ b/settings.sh\n" + CHANGE)
    first = answer(repository, "x.patch")
    git("update-ref", "-d", "refs/partwise/s/1")
    again = answer(repository, "x.patch")
    assert first == again and first.decision == "keep"
    assert git("show", f"{first.commit}:settings.sh") == "GAIN=-200\nFAIL="
    assert git("status", "--porcelain") == "" and git("rev-parse", "HEAD") == git("rev-parse", f"{first.commit}^")
