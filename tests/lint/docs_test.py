"""Documents: every relative link leads to a file of the tree, and to a heading that exists."""

import posixpath
import re

import tree

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`[^`\n]*`")


def anchors(text):
    """The fragment names of a page's headings, as code hosts make them."""
    found = set()
    for heading in re.findall(r"^#{1,6}[ \t]+(.+?)[ \t]*$", _without_fences(text), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        candidate, number = name, 0
        while candidate in found:
            number += 1
            candidate = f"{name}-{number}"
        found.add(candidate)
    return found


def _without_fences(text):
    return re.sub(r"^(```|~~~).*?^\1[ \t]*$", "", text, flags=re.MULTILINE | re.DOTALL)


def check(files):
    problems = []
    folders = {posixpath.dirname(path) for path in files}
    folders |= {parent for f in folders for parent in _parents(f)}
    for path in sorted(files):
        if not path.endswith(".md"):
            continue
        text = _CODE.sub("", _without_fences(files[path]))
        for target in _LINK.findall(text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            to = posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path
            if to not in files and to.rstrip("/") not in folders:
                problems.append(f"{path}: link to {target}, which does not exist")
            elif anchor and to in files and anchor not in anchors(files[to]):
                problems.append(f"{path}: link to {target}: no such heading")
    return problems


def _parents(folder):
    while folder:
        folder = posixpath.dirname(folder)
        yield folder


def self_test():
    page = "# One two\n\n## What, why?\n\n```sh\n# not a heading\n[x](nowhere.md)\n```\n"
    assert anchors(page) == {"one-two", "what-why"}, anchors(page)
    good = "[a](b.md) [b](b.md#what-why) [c](#x) [d](../README.md) [e](https://x.y/z) [f](adr/)\n"
    tree.expect(
        check({
            "docs/a.md": good + "# X\n`[z](gone.md)`\n", "docs/b.md": page, "README.md": "",
            "docs/adr/t.md": "",
        })
    )  # fmt: skip
    tree.expect(check({"docs/a.md": "[a](b.md)"}), "docs/a.md: link to b.md")
    tree.expect(check({"docs/a.md": "[a](#none)"}), "no such heading")
    tree.expect(check({"docs/a.md": "[a](b.md#none)", "docs/b.md": page}), "no such heading")
    tree.expect(check({"docs/a.md": "[a](../docs/b.md)"}), "which does not exist")


if __name__ == "__main__":
    tree.main(check, self_test)
