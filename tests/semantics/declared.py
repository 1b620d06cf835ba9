"""The scripts of the suite, and the cases that they declare."""

import ast
import functools
import os

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts")


def path_of(script):
    return os.path.abspath(os.path.join(SCRIPTS, script))


@functools.cache
def cases_in(script):
    """The names and first lines of documentation of the cases that a script declares."""
    with open(os.path.join(SCRIPTS, script)) as file:
        tree = ast.parse(file.read())
    found = {"": (ast.get_docstring(tree) or "").splitlines()[0]}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "record.case" for d in node.decorator_list):
            found[node.name] = (ast.get_docstring(node) or "").split("\n")[0]
    return found
