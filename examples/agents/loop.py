"""A program that searches: it edits train.py, commits, asks `partwise try`, and keeps the commit or takes it back.

    python loop.py [--changes N]

Run it in an empty folder: it makes a repository there, with train.py and prepare.py. An agent does the same, with changes of
its own in place of `CHANGES`.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SETTINGS = [
    *("--search", "toy", "--command", f'"{sys.executable}" train.py --seed={{seed}}', "--metric", r"val_loss (\S+)"),
    *("--minutes", "0.05", "--fixed", "prepare.py"),
]
CHANGES = [
    ("zeros as initial weights", "INIT_SD", "0.0", "nothing"),
    ("twice the learning rate", "LR", "0.1", "helps"),
    ("half the steps", "STEPS", "50", "harms"),
    ("a name that does not exist", "LR", "learning_rate", "crashes"),
    ("twice the steps", "STEPS", "200", "helps"),
    ("one step more", "STEPS", "201", "nothing"),
]
"""What a change is called, the setting and its value, and what it does: here that is known."""


def git(*words: str) -> None:
    identity = ["-c", "user.name=loop", "-c", "user.email=loop@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], check=True, stdout=subprocess.DEVNULL)


def try_commit(description: str) -> dict:
    """What `partwise try` answers about the last commit. It exits with 0 for keep, 1 for discard and 3 for undecided."""
    command = [sys.executable, "-m", "partwise", "try", "HEAD", *SETTINGS, "--start", "start"]
    done = subprocess.run([*command, "--description", description, "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1, 3):
        sys.exit("partwise could not try it; the reason is above. The same command continues.")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=len(CHANGES))
    options = parser.parse_args()
    if any(Path.cwd().iterdir()):
        sys.exit("run it in an empty folder")
    for name in ("train.py", "prepare.py"):
        shutil.copy(HERE / name, name)
    Path(".gitignore").write_text("runs\n__pycache__\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=start")
    git("tag", "start")
    rows = []
    for description, setting, value, effect in CHANGES[: options.changes]:
        file = Path("train.py")
        file.write_text(re.sub(rf"^{setting} = .*$", f"{setting} = {value}", file.read_text(), flags=re.MULTILINE))
        git("commit", "--quiet", "--all", f"--message={description}")
        state = try_commit(description)
        decision = state["answer"]["decision"]
        if decision != "keep":
            git("reset", "--quiet", "--hard", "HEAD~1")
        rows.append((description, effect, decision, len(state["answer"]["values"])))
    print(f"{'change':28} {'truth':8} {'decision':10} {'runs':>4}")
    for description, effect, decision, runs in rows:
        print(f"{description:28} {effect:8} {decision:10} {runs:4}")
    print(f"{state['runs']} runs in all, {len(rows)} changes, {sum(row[2] == 'keep' for row in rows)} kept")


if __name__ == "__main__":
    main()
