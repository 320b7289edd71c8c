"""Rules for single files: length, include guards, and things that must not be in them."""

import re

import tree

MAX_LINES = 600

# (what it is, files it applies to, pattern). Patterns are written so that they do not match
# themselves.
FORBIDDEN = [
    ("a path of somebody's machine", r".*", r"/[w]ork/|/tmp/[w]t\b|/[h]ome/\w+/|\.\./[s]hared\b"),
    ("a note of who typed the text", r".*", r"(?i)\bas an [a]i\b|co-[a]uthored-by|generated (by|with) [c]laude"),
    ("a mark of unfinished work", r".*\.(h|cc|py|proto|cmake)$", r"\b(T[O]DO|F[I]XME|X[X]X)\b"),
    ("absl/log, which Debian's abseil lacks", r".*\.(h|cc)$", r'include "absl/[l]og/'),
    ("<format>, which g++ 12 lacks", r".*\.(h|cc)$", r"include <[f]ormat>"),
    (
        "time that is not core/base/clock.h",
        r"core/(?!base/(clock|log)\.)",
        r"\b(steady|system|high_resolution)_[c]lock::now|\babsl::[N]ow\(|\b[c]lock_gettime\(",
    ),
    (
        "randomness that is not core/base/random.h",
        r"core/(?!base/random\.)",
        r"\brandom_[d]evice\b|\bstd::[m]t19937|\babsl::[B]itGen|\bs?[r]and\(\)",
    ),
    ("an assertion that release builds drop", r"(core|server|client)/.*\.(h|cc)$", r"(?<![_\w])[a]ssert\("),
]


def guard_of(path):
    """core/base/clock.h -> WARMPATH_CORE_BASE_CLOCK_H_"""
    return "WARMPATH_" + re.sub(r"[^A-Za-z0-9]", "_", path).upper() + "_"


def check(files):
    problems = []
    for path in sorted(files):
        text = files[path]
        for what, where, pattern in FORBIDDEN:
            if not re.match(where, path):
                continue
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                problems.append(f"{path}:{line}: contains {what}: {match.group(0)}")
        if not tree.is_source(path, text):
            continue
        lines = text.count("\n")
        if lines > MAX_LINES:
            problems.append(f"{path}: {lines} lines; split it, {MAX_LINES} is the limit")
        if text and not text.endswith("\n"):
            problems.append(f"{path}: no newline at the end")
        if "\r" in text:
            problems.append(f"{path}: carriage returns")
        if re.search(r"[ \t]+$", text, re.MULTILINE):
            problems.append(f"{path}: spaces at the end of a line")
        if path.endswith(".h"):
            problems.extend(_check_guard(path, text))
    return problems


def _check_guard(path, text):
    guard = guard_of(path)
    wanted = [f"#ifndef {guard}", f"#define {guard}", f"#endif  // {guard}"]
    directives = re.findall(r"^#.*$", text, re.MULTILINE)
    if directives[:2] != wanted[:2] or directives[-1:] != wanted[2:]:
        return [f"{path}: the include guard must be {guard}, closed by '{wanted[2]}'"]
    return []


def self_test():
    def header(path, body=""):
        guard = guard_of(path)
        return f"// x\n#ifndef {guard}\n#define {guard}\n{body}#endif  // {guard}\n"

    good = header("core/base/a.h", "int x;\n")
    tree.expect(check({"core/base/a.h": good, "docs/x.md": "any text "}))
    tree.expect(check({"core/base/b.h": good}), "WARMPATH_CORE_BASE_B_H_")
    tree.expect(check({"core/base/b.h": "#pragma once\n"}), "include guard")
    tree.expect(check({"a.cc": "\n" * (MAX_LINES + 1)}), "split it")
    tree.expect(check({"scripts/x": "#!/bin/sh\n" + "\n" * MAX_LINES}), "split it")
    tree.expect(check({"docs/x.md": "\n" * 5000}))
    tree.expect(check({"a.py": "x = 1"}), "no newline")
    tree.expect(check({"a.py": "x = 1 \n"}), "spaces at the end")
    tree.expect(check({"docs/x.md": "see " + "/wo" + "rk/main"}), "somebody's machine")
    tree.expect(check({"a.cc": "// TO" + "DO: later\n"}), "unfinished")
    tree.expect(check({"core/x/a.cc": "t = absl::No" + "w();\n"}), "core/base/clock.h")
    tree.expect(check({"core/base/clock.cc": "t = absl::No" + "w();\n"}))
    tree.expect(check({"core/x/a.cc": "std::random_de" + "vice d;\n"}), "core/base/random.h")
    tree.expect(check({"server/a.cc": "ass" + "ert(x);\nstatic_ass" + "ert(y);\n"}), "release builds")


if __name__ == "__main__":
    tree.main(check, self_test)
