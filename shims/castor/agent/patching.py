"""Replaces the functions of PyTorch in the table of replaced.py, and can undo all replacements.

A function that differs from the table is not replaced: an error names it, and the plugin is refused."""
import importlib
import inspect
import sys

from . import core
from .common import traced
from .replaced import ROWS

_ABSENT = object()
_rows = {row.name: row for row in ROWS}
_done = []  # (owner, attribute, original function, its entry in vars(owner) or _ABSENT, replacement), oldest first
_kept = 0  # of these, the first ones stay


def replace(name, wrap):
    """Replaces the function, or functions, of a row by `wrap(function)`. Skips a function that is absent and may be."""
    row = _rows[name]
    for owner, attribute in _places(row, load=True):
        stock = getattr(owner, attribute)
        # A function that is replaced already was looked at then.
        problem = "" if any(made is stock for *_, made in _done) else _problem(row, stock)
        if problem:
            raise core.Error(f"castor: {_shown(row, owner, attribute)} of torch {_version()} is not the function that Castor replaces: {problem}")
        replacement = wrap(stock)
        if replacement is stock:
            continue
        if row.traced:
            replacement = traced.unless_compiled(replacement, stock)
        put(owner, attribute, replacement)
        for other in row.also:
            put(_resolve(other, load=True), attribute, replacement)


def put(owner, attribute, value):
    """Sets an attribute of a class or module, which undo_all() restores. Called directly for classes of the script."""
    stock, before = getattr(owner, attribute), vars(owner).get(attribute, _ABSENT)
    if isinstance(before, staticmethod) and not isinstance(value, staticmethod):
        value = staticmethod(value)
    setattr(owner, attribute, value)
    _done.append((owner, attribute, stock, before, value))


def undo_all():
    """Undoes all replacements since keep(), except for those that others have replaced since. Returns the names of these."""
    left = []
    while len(_done) > _kept:
        owner, attribute, _, before, value = _done.pop()
        if vars(owner).get(attribute) is not value:
            left.append(f"{owner.__name__}.{attribute}")
        elif before is _ABSENT:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, before)
    return left


def keep():
    """The replacements so far have nothing to do with a plugin: undo_all() leaves them."""
    global _kept
    _kept = len(_done)


def look():
    """(name, difference from the table, why it is replaced) of each function that exists, or should. The difference is empty if
    there is none. Functions of libraries that are not imported are left out."""
    found = []
    for row in ROWS:
        try:
            places = _places(row, load=row.name.startswith("torch."))
        except core.Error as error:
            found.append((row.name, str(error).removeprefix("castor: "), row.why))
            continue
        for owner, attribute in places:
            found.append((_shown(row, owner, attribute), _problem(row, _original(owner, attribute)), row.why))
    return found


def _original(owner, attribute):
    """The attribute before all replacements."""
    return next((stock for of, name, stock, *_ in _done if of is owner and name == attribute), getattr(owner, attribute))


def _places(row, load):
    """(owner, attribute) of each function that a row stands for."""
    path, _, attribute = row.name.rpartition(".")
    if attribute == "*":
        module = _resolve(path, load)
        return [] if module is None else [(module, name) for name in vars(module) if _is_of_generator(module, name)]
    if path.endswith(".*"):
        module = _resolve(path[:-2], load)
        classes = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
        return [(c, attribute) for c in classes if attribute in vars(c)]
    owner = _resolve(path, load)
    if owner is None or not hasattr(owner, attribute):
        if row.may_lack:
            return []
        raise core.Error(f"castor: torch {_version()} has no {row.name}({row.parameters}), which Castor replaces")
    return [(owner, attribute)]


def _is_of_generator(module, name):
    """numpy.random's functions are methods of its one generator."""
    return getattr(vars(module)[name], "__self__", None) is vars(module)["get_state"].__self__


def _resolve(path, load):
    """The module or class of a dotted name; None: there is none."""
    names = path.split(".")
    found, end = None, len(names)
    while end and found is None:
        found = sys.modules.get(".".join(names[:end]))
        end -= found is None
    for name in names[end:]:
        found = getattr(found, name, None)
    if found is None and load:
        try:
            found = importlib.import_module(path)
        except ImportError:
            pass
    return found


def _problem(row, function):
    """How a function differs from its row; empty: not at all."""
    if row.parameters == "...":
        return ""
    expected = row.parameters.split(", ")
    found = [f"<{type(function).__name__}>"] if expected[0].startswith("<") else _described(function)
    if expected[-1] == "...":
        as_expected = found[:len(expected) - 1] == expected[:-1]
    else:
        as_expected = found == expected
    return "" if as_expected else f"its parameters are ({', '.join(found)}), and ({row.parameters}) are expected"


def _described(function):
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [f"<{type(function).__name__}>"]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(p.kind, "") + p.name for p in parameters]


def _shown(row, owner, attribute):
    path = row.name.rpartition(".")[0]
    return f"{path.removesuffix('*')}{owner.__name__}.{attribute}" if path.endswith("*") else f"{path}.{attribute}"


def _version():
    return getattr(sys.modules.get("torch"), "__version__", "?")
