"""Ranks of a launcher (torchrun, accelerate launch), forked from the import of PyTorch that the launcher has made anyhow.

At the end of that import the launcher's process forks a server, which stops where `import torch` returns, and forks a rank whenever the launcher
starts one: with the environment, the outputs and the words that it would have been started with. The launcher holds an object of
subprocess.Popen, as always; where the server cannot start a rank alike, Popen does. A rank's own `import torch` finds the modules that are there.

What is decided about the process is in interpose/forking."""
import ctypes
import gc
import importlib
import importlib._bootstrap
import importlib.util
import io
import itertools
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import types

from .. import core, patching

SECONDS = 60  # of a request: until the server has forked
# Variables that are read while Python starts, or when PyTorch, its libraries, the C library and ours are loaded.
EARLY = ("PYTHON", "LD_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "TORCH", "PYTORCH", "CASTOR_ARENA", "CASTOR_PLUGIN", "MALLOC_",
         "GLIBC_", "LC_", "LANG", "CUBLAS_")
# ... but for these: torchrun tells ranks by them, or what they say can be done later.
LATE = ("TORCHELASTIC_", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_RETHROW_CUDA_ERRORS", "OMP_NUM_THREADS")
THREADS = "OMP_NUM_THREADS"
_OPENBLAS = [f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")]

_STARTS = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"

end = ctypes.pythonapi.Py_Exit  # of a rank whose script is over
server = None  # in the launcher
_torch = None  # in a rank that has not imported it yet: the module


def start():
    """In a launcher: forks the server. True in the server, which must not attach."""
    global server
    if not hasattr(sys, "orig_argv") or not hasattr(importlib._bootstrap, "_ModuleLock") or not core.serve_ready():
        return False
    importlib.import_module("castor.agent.plugin")
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        core.serve_begin(1)
        os.setsid()  # what a terminal sends is for the launcher
        near.close()
        _serve_after_import(far)
        return True
    core.serve_begin(0)
    far.close()
    os.environ.pop("CASTOR_FORK_SERVER", None)
    server = Server(pid, near)
    try:
        importlib.import_module(_STARTS)
    except ImportError:  # nobody will ask
        server.end()
    patching.replace(f"{_STARTS}.SubprocessHandler._popen", server.wrap)
    return False


# ---- the launcher


class Server:
    def __init__(self, pid, line):
        self.pid, self.line = pid, line
        self.line.settimeout(SECONDS)
        self.environment = {name: value for name, value in os.environ.items() if _is_early(name)}

    def wrap(self, stock):
        def popen(handler, args, env):
            reason = self.why_not(args, env)
            if not reason and not (hasattr(handler, "_stdout") and hasattr(handler, "_stderr")):
                reason = "this version of torchrun keeps its files elsewhere"
            core.ranks_tell(f"one by one: {reason}".encode() if reason else b"forked from the launcher's import of PyTorch")
            if reason:
                return stock(handler, args, env)
            return Rank(self, list(args), env, {1: handler._stdout, 2: handler._stderr})

        return popen

    def why_not(self, args, env):
        """Why a process that is forked from this image would not be as if it had been started so; "" if it would."""
        early = {name: value for name, value in env.items() if _is_early(name)}
        other = sorted(name for name in {*early, *self.environment} if early.get(name) != self.environment.get(name))
        script = args[2:3] if args[2:3] != ("-m",) else args[3:4]
        if self.line is None:
            return "the server that forks them has ended"
        if args[0] != sys.executable or args[1:2] != ("-u",) or not script or script[0].startswith("-") or args[2] != "-m" and not _is_script(script[0]):
            return "they are not started as `python -u SCRIPT`"
        if sys.orig_argv[1:2] and sys.orig_argv[1][0] == "-" and sys.orig_argv[1] not in ("-m", "-u"):
            return f"the launcher runs with Python's {sys.orig_argv[1]}, and they do not"
        if other or not env.get(THREADS, "1").isdecimal():
            return f"the launcher sets {', '.join(other) or THREADS} for them"
        return ""

    def fork(self, args, env, files):
        """The process id of the new rank, which has these files by their numbers; None: there is none."""
        files = {number: file.fileno() for number, file in files.items() if file is not None}
        words = {"args": args, "env": env, "folder": os.getcwd(), "files": list(files), "launcher": os.getpid()}
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            memory = os.memfd_create("castor-rank")
            with open(memory, "wb") as file:
                file.write(json.dumps(words).encode("utf-8", "surrogateescape"))
                file.flush()
                socket.send_fds(self.line, [b"fork"], [memory, *files.values()])
            pid = int(self.line.recv(64) or 0)
        except (OSError, ValueError):
            pid = 0
        if pid > 0:
            return pid
        self.end()
        return None

    def end(self):
        self.line.close()
        self.line = None
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Rank(subprocess.Popen):
    """As every other, but for how its process comes to be."""

    def __init__(self, server, args, env, files):
        self._asked = (server, args, env, files)
        super().__init__(args, env=env, stdout=files[1], stderr=files[2], start_new_session=True)

    def _execute_child(self, *how):
        server, *asked = self._asked
        pid = server.fork(*asked)
        if pid is None:
            super()._execute_child(*how)
        else:
            self.pid, self._child_created = pid, True


def _is_script(path):
    """Not a folder or an archive, which Python runs as a package."""
    return os.path.isfile(path) and pkgutil.get_importer(path) is None


def _is_early(name):
    return name.startswith(EARLY) and not name.startswith(LATE)


# ---- the server


def _serve_after_import(line):
    """Stops this process where the import of torch ends: where its lock is released for the last time. Backends that load after this one
    take it within, when they import torch."""
    release = importlib._bootstrap._ModuleLock.release

    def stop(lock):
        release(lock)
        if lock.name == "torch" and not lock.count:
            importlib._bootstrap._ModuleLock.release = release
            _serve(line)

    importlib._bootstrap._ModuleLock.release = stop


def _serve(line):
    """Never returns: a rank ends in here, too."""
    importlib.import_module("castor.agent.plugin").prepare()
    while True:
        message, files, _, _ = socket.recv_fds(line, 64, 8)
        if not message:
            os._exit(0)
        with open(files[0], "rb") as file:
            file.seek(0)
            words = json.loads(file.read().decode("utf-8", "surrogateescape"))
        read, write = os.pipe()
        helper = os.fork()
        if helper == 0:
            _fork_and_end(line, words, files[1:], read, write)
        os.close(write)
        os.waitpid(helper, 0)
        pid = os.read(read, 64)
        for file in (read, *files[1:]):
            os.close(file)
        line.send(pid or b"0")


def _fork_and_end(line, words, files, read, write):
    try:
        pid = os.fork()
    except OSError:
        os._exit(1)
    if pid:
        os.write(write, str(pid).encode())
        os._exit(0)
    for file in (line.detach(), read, write):
        os.close(file)
    try:
        _become(words, files)
    except BaseException as error:  # noqa: BLE001 - there is nobody above
        sys.__stderr__.write(f"castor: a rank could not be started: {type(error).__name__}: {error}\n")
    os._exit(1)


# ---- a rank


def _become(words, files):
    args = words["args"]
    shown = b"".join(os.fsencode(word) + b"\0" for word in args)
    if not core.serve_become(words["launcher"], os.fsencode(os.path.basename(args[0]))[:15], shown, len(shown)):
        os._exit(1)
    os.setsid()
    for number in words["files"]:
        os.dup2(files.pop(0), number)
    os.chdir(words["folder"])
    os.environ.clear()
    os.environ.update(words["env"])
    os.environ.pop("CASTOR_FORK_SERVER", None)
    core.environment_read()
    _take_environment()
    core.read_options()
    _begin_as_python(args)
    _forget_imports()
    _run(args[2:])


def _take_environment():
    """What the library has changed in it: the process has become a rank of a single-process script (interpose/forking/joining.c)."""
    block, now = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ"), {}
    for entry in itertools.takewhile(lambda entry: entry is not None, map(block.__getitem__, itertools.count())):
        name, _, value = entry.partition(b"=")
        now[os.fsdecode(name)] = os.fsdecode(value)
    if now != dict(os.environ):
        os.environ.clear()
        os.environ.update(now)


def _begin_as_python(args):
    """As Python begins with these words (-u is the first)."""
    sys.orig_argv = list(args)
    for name, number in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, f"__{name}__")
        raw = io.FileIO(number, "w", closefd=False)
        raw.name = f"<{name}>"
        stream = io.TextIOWrapper(raw, encoding=old.encoding, errors=old.errors, newline="\n", write_through=True)
        stream.mode = "w"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # each process draws its own


def _forget_imports():
    """What the launcher was importing, and torch itself until the script imports it."""
    global _torch
    bootstrap = importlib._bootstrap
    bootstrap._module_locks.clear()
    bootstrap._blocking_on.clear()
    unfinished = {name for name, module in list(sys.modules.items()) if getattr(getattr(module, "__spec__", None), "_initializing", False)}
    roots = {name.partition(".")[0] for name in unfinished} - {"torch"}
    for name in list(sys.modules):
        if name in unfinished or name.partition(".")[0] in roots:
            del sys.modules[name]
    _torch = sys.modules.pop("torch")
    sys.meta_path.insert(0, _Finder({name: os.environ.get(name) for name in os.environ if name.startswith(EARLY)}))


class _Finder:
    """Finds torch once, where it is."""

    def __init__(self, environment):
        self.environment = environment

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "torch" else None

    def create_module(self, spec):
        self.spec = _torch.__spec__
        return _torch

    def exec_module(self, module):
        module.__spec__ = self.spec
        sys.meta_path.remove(self)
        _settle(self.environment)
        importlib.import_module("castor.agent").attach()


def _settle(before):
    """What PyTorch would have read in the environment while it was loaded."""
    now = {name: os.environ.get(name) for name in os.environ if name.startswith(EARLY)}
    late = sorted(name for name in {*before, *now} if before.get(name) != now.get(name) and name != THREADS and not name.startswith("CASTOR_"))
    if late:
        core.log(1, f"{', '.join(late)}: set by the script before it imports PyTorch, which is there already: set it in front of castor run, or set "
                    "CASTOR_FORK=off".encode())
    threads = os.environ.get(THREADS, "")
    if threads.isdecimal() and int(threads) > 0:
        _torch.set_num_threads(int(threads))
        _set_openblas(int(threads))


def _set_openblas(threads):
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line}
    for path in paths:
        library = ctypes.CDLL(path)
        for name in _OPENBLAS:
            if hasattr(library, name):
                getattr(library, name)(threads)
                break


def _run(words):
    """The script, or the module, as `python WORDS` runs it; then the process ends as Python ends."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__, main.__annotations__ = sys.modules["builtins"], {}
    api = ctypes.pythonapi
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        status = _run_module(words[1])
    else:
        sys.argv = words
        if not _is_path_safe():
            sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
        libc = ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        api.PyRun_SimpleFileExFlags.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
        path = os.path.join(os.getcwd(), words[0].removeprefix("./"))  # as Python makes it absolute
        file = libc.fopen(os.fsencode(path), b"rb")
        if not file:
            sys.stderr.write(f"{sys.executable}: can't open file {path!r}\n")
            os._exit(2)
        status = api.PyRun_SimpleFileExFlags(file, os.fsencode(path), 1, None)
    if status and issubclass(getattr(sys, "last_type", None) or Exception, KeyboardInterrupt):
        api.Py_FinalizeEx()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    end(1 if status else 0)


def _is_path_safe():
    """Whether Python puts no folder of the script's in front (-P, from 3.11 on)."""
    return getattr(sys.flags, "safe_path", False)


def _run_module(name):
    import runpy

    if not _is_path_safe():
        sys.path[0] = os.getcwd()
    try:
        runpy._run_module_as_main(name)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - printed as Python prints it
        sys.last_type = type(error)
        sys.excepthook(type(error), error, error.__traceback__.tb_next)
        return 1
    return 0
