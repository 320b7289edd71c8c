"""Reads the repository's own text files for the lint checks."""

import argparse
import pathlib
import sys

SKIPPED_FOLDERS = {"build", "__pycache__"}
SOURCE_SUFFIXES = {".h", ".cc", ".cpp", ".proto", ".py", ".cmake", ".sh", ".js", ".lua"}


def read_tree(root):
    """Returns {path relative to root: text} of every text file that belongs to the repository."""
    files = {}
    pending = [root]
    while pending:
        folder = pending.pop()
        for entry in sorted(folder.iterdir()):
            if entry.is_symlink() or entry.name == ".git":
                continue
            if entry.is_dir():
                hidden = entry.name.startswith(".") and entry.name != ".ci"
                if not hidden and entry.name not in SKIPPED_FOLDERS:
                    pending.append(entry)
                continue
            data = entry.read_bytes()
            if b"\0" in data:
                continue
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                continue
            files[entry.relative_to(root).as_posix()] = text
    return files


def is_source(path, text):
    """True for files that people write as program text, scripts without a suffix included."""
    return (
        pathlib.PurePosixPath(path).suffix in SOURCE_SUFFIXES
        or path.endswith("CMakeLists.txt")
        or text.startswith("#!")
    )


def main(check, self_test):
    """Proves with self_test() that the check can fail, then runs it over --root."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True, help="root of the repository")
    root = parser.parse_args().root
    self_test()
    files = read_tree(root)
    if not files:
        sys.exit(f"no files below {root}")
    problems = check(files)
    for problem in problems:
        print(problem)
    print(f"{len(files)} files read, {len(problems)} problems")
    sys.exit(1 if problems else 0)


def expect(problems, *needles):
    """Self-test helper: exactly one problem for each needle, in any order, and no other."""
    assert len(problems) == len(needles), f"expected {len(needles)} problems, got: {problems}"
    for needle in needles:
        assert any(needle in problem for problem in problems), f"no '{needle}' in: {problems}"
