"""Parts of docs/foreign.md, each made by a program of its own."""
import re


def replace(path, title, text):
    """The part below this title, which ends at the next one of its depth, or the new one at the end."""
    with open(path) as file:
        whole = file.read()
    part = f"## {title}\n\n{text}\n"
    found = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", whole, re.MULTILINE | re.DOTALL)
    if found:
        rest = whole[found.end():]
        whole = whole[:found.start()] + part + ("\n" + rest if rest else "")
    else:
        whole = whole.rstrip("\n") + "\n\n" + part
    with open(path, "w") as file:
        file.write(whole)


def others(path):
    """What stands in the file below the first such title, if there is one."""
    try:
        with open(path) as file:
            found = re.search(r"^## .*", file.read(), re.MULTILINE | re.DOTALL)
    except FileNotFoundError:
        return ""
    return found[0] if found else ""
