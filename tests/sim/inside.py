"""What a test program says, and what the simulation tells a program that runs on it."""
import ctypes
import sys
import threading
import traceback


class Launch(ctypes.Structure):
    """struct sim_launch of engine/sim.h"""
    _fields_ = [("sequence", ctypes.c_uint64), ("name", ctypes.c_char_p), ("grid", ctypes.c_uint * 3),
                ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint), ("stream_id", ctypes.c_uint64),
                ("device", ctypes.c_int), ("argument_bytes", ctypes.c_uint), ("pointers", ctypes.c_uint),
                ("dangling", ctypes.c_uint)]


engine = ctypes.CDLL(None)
engine.sim_launch_count.restype = ctypes.c_uint64
engine.sim_launch_dangling.restype = ctypes.c_uint64
engine.sim_launch_get.argtypes = [ctypes.c_uint64, ctypes.POINTER(Launch)]
engine.sim_fault_set.argtypes = [ctypes.c_char_p, ctypes.c_char_p]


def launches(since=0):
    """The launches that have run, from that number on; the last 65536 are kept."""
    found = []
    for sequence in range(since, engine.sim_launch_count()):
        launch = Launch()
        if engine.sim_launch_get(sequence, ctypes.byref(launch)):
            found.append(launch)
    return found


def faults(fail="", latency=""):
    """Replaces what SIM_FAIL and SIM_LATENCY said."""
    engine.sim_fault_set(fail.encode(), latency.encode())


class Gate:
    """Holds a stream, by a host function, until it is opened."""
    _type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    def __init__(self, stream):
        self._event = threading.Event()
        self._function = self._type(lambda _: self._event.wait() and None)
        result = ctypes.CDLL("libcudart.so.13").cudaLaunchHostFunc(ctypes.c_void_p(stream.cuda_stream), self._function, None)
        assert result == 0, result

    def open(self):
        self._event.set()


def main(names):
    """Runs the functions `test_…` of the calling module, and says for each how it went."""
    failed = 0
    for name, function in list(names.items()):
        if not name.startswith("test_"):
            continue
        try:
            function()
            print("ok", name[5:], flush=True)
        except Exception as error:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"FAIL {name[5:]}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    sys.exit(1 if failed else 0)
