"""Which cases run.py trains, with which optimizers, and on which devices."""
import dataclasses
import random

MIB = 1 << 20
AMPLE = 8 << 30  # bytes of a device that holds everything


@dataclasses.dataclass(frozen=True)
class Device:
    """Where the runs under Castor train. Their model data may have `share` of the device's memory; None: as much as there is.
    `overflows`: the device is so small that plain PyTorch runs out of its memory."""
    name: str
    share: float = None
    overflows: bool = False
    missing: float = 0.5  # then, of what may lie on the host
    link: str = ""  # bytes per second
    latency: str = ""  # SIM_LATENCY
    variables: tuple = ()  # more of the environment
    options: tuple = ()  # of Castor
    fails: bool = False  # calls fail: cases may raise
    halved: bool = False  # half of the memory that a case needs
    says: str = ""  # what Castor's line about the device begins with, once in each process
    homes: bool = True
    precision: str = ""  # CASTOR_PRECISION

    @property
    def alone(self):
        """Each case needs a device of its own size, or a process in which nothing is made yet."""
        return self.overflows or self.fails

    def budget(self, model_bytes):
        """Of cases with so much model data, for CASTOR_DEVICE_BUDGET; None: it is not set."""
        return None if self.share is None else int(self.share * min(model_bytes))

    def memory(self, model_bytes, peak_bytes):
        """Of a case that allocates so much at its peak: less by a part of what may lie on the host, or by half of all."""
        if self.halved:
            return peak_bytes // 2 // MIB * MIB
        return (peak_bytes - int(model_bytes * (1 - (self.share or 0)) * self.missing)) // MIB * MIB if self.overflows else AMPLE


def delayed(seed):
    """Operations take their time, one kind longer than another."""
    chance = random.Random(seed)
    most = {"launch": 80, "copy": 3000, "blas": 600, "set": 200, "event": 60, "wait": 60, "cuMemMap": 500, "cudaMalloc": 1000}
    chosen = sorted(chance.sample(sorted(most), chance.randint(2, 6)))
    return Device(f"delays of seed {seed}", chance.choice((0.5, 0.25, 0.125)), latency=",".join(f"{kind}:{chance.randint(1, most[kind])}" for kind in chosen))


SHARES = Device("a half", 0.5), Device("a quarter", 0.25), Device("an eighth", 0.125)
SMALL = Device("a quarter, and plain PyTorch overflows", 0.25, overflows=True)
UNBOUND = Device("what there is, and plain PyTorch overflows", overflows=True)
NEARLY = Device("nearly enough, and plain PyTorch overflows", overflows=True, missing=0.125)
SLOW = Device("a quarter, over a slow link", 0.25, link="2G", latency="copy:500,blas:50")
ROOM = Device("all of it")
STATIC = Device("fixed shares", options=("CASTOR_PLACEMENT=static", "CASTOR_OFFLOAD_OPTIM_FRAC=1", "CASTOR_OFFLOAD_PARAM_FRAC=0.5"))
EXPANDABLE = Device("a quarter, with expandable segments", 0.25, variables=(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),))
OVERFLOW = Device("half of what it needs, and host memory for the rest", overflows=True, halved=True, options=("CASTOR_OVERFLOW=1G",))
# Drivers that map no pages of the host, and those that allocate none there either.
NO_PAGES = {"variables": (("SIM_REFUSES", "host-pages"),), "says": "device 0 maps no memory of the host at its addresses: "}
FIXED = tuple(dataclasses.replace(device, name=f"{device.name}, in homes that stay", **NO_PAGES) for device in (*SHARES[:2], SMALL, SLOW, delayed(1), delayed(2), STATIC))
FIXED_ROOM = dataclasses.replace(ROOM, name="all of it, in homes that stay", **NO_PAGES)
NO_HOMES = Device("no memory of the host", 0.25, variables=(("SIM_REFUSES", "host-pages,host-alloc"),), homes=False,
                  says="this process trains without the plugin: model data stays where the script has it: device 0 maps no memory of the host")
FAILS = Device("calls that fail", 0.25, fails=True)
OTHER_ALLOCATORS = [Device(f"a quarter, but {name}", 0.25, variables=((name, value),), homes=False, says="this process trains without the plugin: model data stays where the script has it: PyTorch allocates ")
                    for name, value in (("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"), ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"))]
TYPES = "bf16", "fp16"  # with which names of cases/halves.py begin
SEEDS = 1, 2, 3, 4, 5, 6

# Of the short length, beside each case with one optimizer and one share: what waits, and what needs room.
ALSO = {
    SMALL: ("gpt:adamw", "wide:momentum", "batch_grows:adamw"),
    UNBOUND: ("gpt:momentum",),
    STATIC: ("mlp:adamw",),
    SLOW: ("mlp:adamw", "accumulation:momentum", "lstm:adam"),
    delayed(1): ("second_stream:adamw", "steps_on_a_stream:momentum", "pinned_batches:adamw", "written_by_a_copy:adamw", "written_on_a_stream:adamw",
                 "written_within_a_step:sgd"),
    delayed(2): ("trains_on_a_stream:adamw-fused", "scaled:adamw", "edited_in_place:adam", "recomputed:sgd"),
    ROOM: ("mlp:adamw", "views_of_one_buffer:momentum"),
    OTHER_ALLOCATORS[0]: ("mlp:adamw",),
    EXPANDABLE: ("batch_grows:momentum", "cache_emptied:adamw"),
    OVERFLOW: ("batch_grows:momentum",),
    FIXED[0]: ("mlp:momentum", "written_by_a_copy:adamw"),
    FIXED[1]: ("tied:adamw", "written_within_a_step:sgd"),
    NO_HOMES: ("mlp:momentum",),
    FAILS: tuple(f"mlp:momentum@{fault}" for fault in ("cuMemCreate:2:2", "cuMemMap:2:999", "cuStreamWaitEvent:1*:999")),
}
# Of the driver, what Castor calls while a script trains (interpose/hooks/cuda).
CALLED = """cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxSynchronize cuThreadExchangeStreamCaptureMode cuMemGetInfo_v2
cuMemGetAllocationPropertiesFromHandle cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess
cuMemcpyAsync cuStreamCreate cuStreamSynchronize cuStreamIsCapturing cuStreamWaitEvent cuEventCreate cuEventRecord cuEventQuery
cuFuncGetParamInfo cuKernelGetParamInfo cudaGetKernel cudaPeekAtLastError""".split()
EACH_FAILS = [(FAILS, f"mlp:momentum@{call}:{number}:{code}") for code in (2, 999) for number in ("1", "2", "3", "1*") for call in CALLED]
# Cases whose subject has an optimizer; the others have one after the other.
WITH = {"gpt": "adamw", "written_through_addresses": "adamw", "mlp": "momentum", "tied": "adamw", "convolution": "nesterov", "lstm": "adam",
        "batch_grows": "adamw", "closure": "lbfgs", "scaled": "adamw-fused"}
# How often homes come back to a device that has nearly enough: at least, and at most. These cases have rows of
# their own.
BACK = {"memory_short_once": (1, 20), "memory_short_each_second_step": (0, 20)}
# Cases that need more room than a device has on which plain PyTorch runs out of memory: their peak is not of model data.
ROOMY = ("after_a_failure", "functional_calls", "gradients_kept", "line_search", "closure", "gradient_penalty")
# Of cases/halves.py; micro_steps has rows of its own.
NARROW = "trained", "clipped", "overflowing", "accumulated", "convolved", "text", "written", "resumed"
# Cases after which a process is not as it was before.
APART = ("captured",)


def narrow(precision, only_short):
    """(device, "case:optimizer") of the cases that CASTOR_PRECISION is for."""
    quarter = Device(f"a quarter, in {precision}", 0.25, precision=precision)
    half = Device(f"a half, in {precision}", 0.5, precision=precision)
    unbound = Device(f"what there is, in {precision}, and plain PyTorch overflows", overflows=True, missing=0.25, precision=precision)
    fourths = Device(f"a half, in {precision}, four micro-steps", 0.5, options=("CASTOR_ACCUMULATE=4",), precision=precision)
    room = Device(f"all of it, in {precision}", precision=precision)
    if only_short:
        return [(quarter, {"bf16": "bf16_clipped:adamw", "fp16": "fp16_overflowing:momentum"}[precision])]
    words = [f"{precision}_{name}" for name in NARROW]
    every = [f"{word}:{optimizer}" for word in words for optimizer in ("momentum", "adamw")]
    every += [f"{precision}_trained:{optimizer}" for optimizer in ("sgd", "nesterov", "adam", "adamw-fused", "adamw-single", "adagrad")]
    slow = dataclasses.replace(quarter, name=f"{quarter.name}, delayed", latency=delayed(1).latency)
    found = [(device, word) for device in (room, half, quarter, slow) for word in every]
    found += [(unbound, f"{precision}_{word}") for word in ("clipped:adamw", "clipped:momentum")]
    return found + [(fourths, f"{precision}_micro_steps:{optimizer}") for optimizer in ("momentum", "adamw")]


def short(cases):
    """(device, "case:optimizer") of the short length; `cases`: the optimizers of each case by its name."""
    found = []
    for number, (name, optimizers) in enumerate((name, cases[name]) for name in cases if name not in BACK and not name.startswith(TYPES)):
        optimizer = WITH.get(name) or optimizers[number % len(optimizers)]
        found.append((SHARES[number // len(SHARES) % len(SHARES)], f"{name}:{optimizer}"))
    found += [(device, word) for device, words in ALSO.items() for word in words]
    return found + [row for precision in TYPES for row in narrow(precision, True)]


def everything(cases):
    every = [f"{name}:{optimizer}" for name, optimizers in cases.items() if not name.startswith(TYPES) for optimizer in optimizers]
    found = [(device, word) for device in (*SHARES, EXPANDABLE, *FIXED[:2]) for word in every]
    one_each = [word for device, word in short(cases) if "@" not in word and not device.precision]
    found += [row for precision in TYPES for row in narrow(precision, False)]
    one_each = list(dict.fromkeys(one_each))
    found += [(NEARLY, f"{name}:momentum") for name in BACK]
    found += [(device, word) for device in (SLOW, ROOM, STATIC, *map(delayed, SEEDS), *FIXED[3:], FIXED_ROOM, NO_HOMES) for word in one_each]
    found += [(device, "mlp:adamw") for device in OTHER_ALLOCATORS]
    return found + EACH_FAILS + [(device, word) for device in (SMALL, UNBOUND, FIXED[2]) for word in one_each if word.partition(":")[0] not in (*ROOMY, *BACK)]
