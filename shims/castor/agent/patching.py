"""Replaces functions of PyTorch: those of the table in replaced.py, and takes all of it back.

A function that is not as the table expects it is not replaced: the error names it, and the plugin is refused."""
import importlib
import inspect
import sys

from . import core
from .replaced import ROWS

_ABSENT = object()
_rows = {row.name: row for row in ROWS}
_done = []  # (owner, attribute, what it was, what stood there or _ABSENT, what stands there now), in the order of their making


def replace(name, wrap):
    """Puts `wrap(function)` in the place of the function, or functions, of a row. Nothing happens where one lacks that may."""
    row = _rows[name]
    for owner, attribute in _places(row, load=True):
        stock = getattr(owner, attribute)
        problem = _problem(row, stock)
        if problem:
            raise core.Error(f"castor: {_shown(row, owner, attribute)} of torch {_version()} is not the function that Castor replaces: {problem}")
        replacement = wrap(stock)
        if replacement is stock:
            continue
        put(owner, attribute, replacement)
        for other in row.also:
            put(_resolve(other, load=True), attribute, replacement)


def put(owner, attribute, value):
    """Puts a value into a class or module, to be taken back with all else. For what is the script's own."""
    stock, before = getattr(owner, attribute), vars(owner).get(attribute, _ABSENT)
    if isinstance(before, staticmethod) and not isinstance(value, staticmethod):
        value = staticmethod(value)
    setattr(owner, attribute, value)
    _done.append((owner, attribute, stock, before, value))


def undo_all():
    """Everything is as it was, but for what others have replaced since, whose names are returned."""
    left = []
    while _done:
        owner, attribute, _, before, value = _done.pop()
        if vars(owner).get(attribute) is not value:
            left.append(f"{owner.__name__}.{attribute}")
        elif before is _ABSENT:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, before)
    return left


def look():
    """(name, what is not as expected of it, why it is replaced) of each function that there is, or should be. What is wrong is empty
    where nothing is. Of libraries that are not imported, nothing is said."""
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
    """What stood there before all replacements."""
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
    if owner is None or not hasattr(owner, attribute) or row.may_lack and isinstance(owner, type) and attribute not in vars(owner):
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
    """What of a function is not as its row says; empty: nothing."""
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
