"""The functions, structures and constants of libcastor.so, bound with ctypes from the library's own table
(interpose/api/api.def): castor_barrier is core.barrier, the structure castor_tensor_info is core.TensorInfo, CASTOR_MODE_OWNER
is core.MODE_OWNER. A function that returns a castor_status raises Error. core.options holds the process's options by name, each
in its own type. Nothing is decided here."""
import ctypes
import glob
import os
import re
import textwrap
import types
from ctypes import POINTER, byref, c_char_p, c_void_p

PACKAGE_FOLDER = os.path.abspath(os.path.join(os.path.dirname(__file__), "..")) + os.sep  # frames there are not the script's
LIBRARY_FOLDER = os.path.dirname(os.path.dirname(PACKAGE_FOLDER[:-1]))  # make and make install lay both out so

options = types.SimpleNamespace()  # interpose/job/options.def


class Error(RuntimeError):
    """An error of the core. Its text says what to do."""


class GroupError(Error):
    """An error that ends the work of all ranks. Each of them gets it."""


class PartedError(GroupError):
    """The ranks have reached different barriers. The text names the line of the script on two of them."""


# ---- the table's declarations

_types = {"void": None, "castor_status": ctypes.c_int, "int": ctypes.c_int, "double": ctypes.c_double, "size_t": ctypes.c_size_t}
_types |= {f"{kind}{bits}_t": getattr(ctypes, f"c_{kind}{bits}") for kind in ("int", "uint") for bits in (8, 32, 64)}
_DECLARATION = re.compile(r"(const )?(\w+) ?((?:\*(?:const)? ?)*)\w*((?:\[\d+\])*)")


def _type_of(declaration):
    """The ctypes type of "const uint64_t *numel", "float *states[3]" or a type alone. A pointer to anything but a number or a
    structure of the table (void, float, types that only the library knows) becomes an address."""
    const, name, stars, sizes = _DECLARATION.fullmatch(declaration).groups()
    depth, found = stars.count("*"), _types.get(name)
    if depth and found is None:
        depth, found = depth - 1, c_char_p if const and name == "char" else c_void_p
    elif not depth and name != "void":
        found = _types[name]
    for _ in range(depth):
        found = POINTER(found)
    for size in reversed(re.findall(r"\d+", sizes)):
        found = found * int(size)
    return found


def _fields(body):
    for declaration in filter(None, map(str.strip, body.strip("{ }").split(";"))):
        base = _DECLARATION.match(declaration)
        first, *others = declaration.split(", ")
        for one in (first, *(f"{base[1] or ''}{base[2]} {other}" for other in others)):
            yield re.search(r"(\w+)(?:\[\d+\])*$", one)[1], _type_of(one)


def _signature(row):
    """(name, result, arguments) of "int castor_node_bind(castor_node *node)"."""
    result, name, parameters = re.fullmatch(r"(.*?)(castor_\w+)\((.*)\)", row).groups()
    return name, _type_of(result.strip()), [] if parameters == "void" else [_type_of(p) for p in parameters.split(", ")]


def _camel(name):
    return "".join(part.capitalize() for part in name.removeprefix("castor_").split("_"))


def _declare(library, row, size):
    """Adds a row's function, type or constants to this module."""
    kind, row = row.split(" ", 1)
    if kind == "function":
        name, result, arguments = _signature(row)
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
        if row.startswith("castor_status "):
            function.errcheck = _raise_on_error
        globals()[name.removeprefix("castor_")] = function
    elif kind == "callback":
        name, result, arguments = _signature(row)
        globals()[_camel(name)] = ctypes.CFUNCTYPE(result, *arguments)
    elif kind == "struct":
        name, body = re.fullmatch(r"(\w+) ?(\{.*\})", row).groups()
        made = _types[name] = globals()[_camel(name)] = type(_camel(name), (ctypes.Structure,), {"_fields_": list(_fields(body))})
        if ctypes.sizeof(made) != size:
            raise Error(f"castor: core.py lays {name} out in {ctypes.sizeof(made)} bytes, libcastor.so in {size}")
    else:
        value = -1
        for one in filter(None, map(str.strip, row.strip("{ }").split(","))):
            name, _, given = one.partition(" = ")
            value = int(given) if given else value + 1
            globals()[name.removeprefix("CASTOR_")] = value


def read_options():
    option, index = Option(), 0
    while option_get(index, byref(option)):
        values = {OPTION_TEXT: option.text.decode(), OPTION_BOOL: bool(option.integer), OPTION_INTEGER: option.integer,
                  OPTION_DECIMAL: option.decimal}
        setattr(options, option.name.decode(), values[option.kind])
        index += 1


# ---- errors


def _raise_on_error(status, function, arguments):
    if status == ERR_INTERRUPTED:
        _raise_again()
    if status:
        kind = PartedError if status == ERR_PARTED else GroupError if status in (ERR_PEER, ERR_TIMEOUT, ERR_MISMATCH) else Error
        raise kind("castor: " + error().decode(errors="replace"))
    return status


def _raise_again():
    """Raises the exception with which a signal's handler (Ctrl-C) ended a wait."""
    raised = (c_void_p * 3)()
    raised_take(raised)
    restore = ctypes.pythonapi.PyErr_Restore
    restore.argtypes, restore.restype = [c_void_p] * 3, None
    restore(*raised)


def _let_signals_in():
    """Gives the core the functions of Python that run signal handlers while this thread waits in it."""
    names = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")
    signals_set(*(ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p) for name in names))


def bind():
    """Binds the library that `castor run` has put in front of PyTorch into this module. False: there is none in this process."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "castor_attach"):
        return False
    if not hasattr(options, "plugin"):
        _bind(library)
    return True


def _bind(library):
    size, index = ctypes.c_uint64(), 0
    _declare(library, "function const char *castor_api_row(uint32_t index, uint64_t *bytes)", 0)
    while row := api_row(index, byref(size)):
        _declare(library, row.decode(), size.value)
        index += 1
    if library._name is not None:
        beside()
    read_options()
    _let_signals_in()


def require(name=None):
    """Binds the library for the explicit API. Outside of `castor run` it is loaded, behind PyTorch: it computes, writes checkpoints,
    and intercepts nothing.

    Args:
        name: what needs the library in front of PyTorch ("castor.lazy"); None: what is imported does not.

    ImportError: the process was not started by `castor run`, and `name` needs that; or the library cannot be loaded."""
    if bind():
        return
    if name is not None:
        raise ImportError(f"castor: {name} needs the library in front of PyTorch; start the command by `castor run ... -- python ...`", name="castor")
    if not hasattr(options, "plugin"):
        _bind(_load())


def _load():
    found = glob.glob(os.path.join(glob.escape(LIBRARY_FOLDER), "libcastor.so.*"))
    if not found:
        raise ImportError(f"castor: there is no libcastor.so in {LIBRARY_FOLDER}: install Castor again", name="castor")
    try:
        return ctypes.CDLL(min(found, key=len))  # the name that programs load it by
    except OSError as error:
        raise ImportError(f"castor: the library cannot be loaded behind PyTorch ({error}): start the command by `castor run -- python ...`",
                          name="castor") from None


def shortened(text, letters):
    """The text in one line of at most so many letters, which ends after a word where it is cut."""
    return textwrap.shorten(text, letters, placeholder=" ...")


def pointers(values):
    return (c_void_p * len(values))(*values)
