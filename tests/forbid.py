"""Starts a command to which the kernel refuses a system call with EPERM, as a sandbox does: tests/forbid.py NAME COMMAND [ARGUMENT]..."""
import ctypes
import os
import platform
import struct
import sys

NUMBERS = {"memfd_create": {"x86_64": 319, "aarch64": 279}}
SET_NO_NEW_PRIVILEGES, SET_SECCOMP, MODE_FILTER = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050001
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # of the call's number, which is the first word of what a filter sees

number = NUMBERS[sys.argv[1]][platform.machine()]
program = struct.pack("HBBI" * 4, LOAD, 0, 0, 0, EQUAL, 0, 1, number, RETURN, 0, 0, REFUSE, RETURN, 0, 0, ALLOW)
code = ctypes.create_string_buffer(program, len(program))
filter_ = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
for call in ((SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (SET_SECCOMP, MODE_FILTER, filter_, 0, 0)):
    if libc.prctl(*call):
        sys.exit(f"no system call can be forbidden here: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[2], sys.argv[2:])
