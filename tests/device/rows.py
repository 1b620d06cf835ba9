"""Which cases run.py trains, with which optimizers, and on which devices."""
import dataclasses
import random

MIB = 1 << 20
AMPLE = 8 << 30  # bytes of a device that holds everything
SEGMENTS = 24 * MIB  # one of PyTorch's allocator for large blocks, and two for small ones


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
    part: float = None  # of the memory that a case needs, in place of `missing`
    says: str = ""  # how Castor's line about the device begins (a regular expression), once in each process
    homes: bool = True
    precision: str = ""  # CASTOR_PRECISION
    away: bool = False  # activations go to the host
    steps: str = ""  # where each optimizer steps what is on the host: "host", "parts"; "": anywhere

    @property
    def alone(self):
        """Each case needs a device of its own size, or a process in which nothing is made yet."""
        return self.overflows or self.fails

    def budget(self, model_bytes):
        """Of cases with so much model data, for CASTOR_DEVICE_BUDGET; None: it is not set."""
        return None if self.share is None else int(self.share * min(model_bytes))

    def memory(self, model_bytes, peak_bytes, other_bytes=0):
        """Of a case that allocates so much at its peak: less by a part of what may lie on the host, or a part of all; but no less than
        everything else than model data takes."""
        if not self.overflows:
            return AMPLE
        if self.part:
            return int(peak_bytes * self.part) // MIB * MIB
        return max(peak_bytes - int(model_bytes * (1 - (self.share or 0)) * self.missing), other_bytes) // MIB * MIB


PARTS = {0.5: "a half", 0.25: "a quarter", 0.125: "an eighth"}


def delayed(seed, share=0.25):
    """Operations take their time, one kind longer than another."""
    chance = random.Random(seed)
    most = {"launch": 80, "copy": 3000, "blas": 600, "set": 200, "event": 60, "wait": 60, "cuMemMap": 500, "cudaMalloc": 1000}
    chosen = sorted(chance.sample(sorted(most), chance.randint(2, 6)))
    return Device(f"{PARTS[share]}, with delays of seed {seed}", share, latency=",".join(f"{kind}:{chance.randint(1, most[kind])}" for kind in chosen))


def slow(share):
    return Device(f"{PARTS[share]}, over a slow link", share, link="2G", latency="copy:500,blas:50")


def expandable(share):
    return Device(f"{PARTS[share]}, with expandable segments", share, variables=(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),))


SHARES = tuple(Device(name, share) for share, name in PARTS.items())
SMALL = Device("a quarter, and plain PyTorch overflows", 0.25, overflows=True)
UNBOUND = Device("what there is, and plain PyTorch overflows", overflows=True)
NEARLY = Device("nearly enough, and plain PyTorch overflows", overflows=True, missing=0.125)
ROOM = Device("all of it")
AWAY = Device("all of it, and activations on the host", away=True)
AWAY_AND_SMALL = Device("a quarter of its activations, which go to the host", overflows=True, part=0.18, away=True)
AWAY_SLOWLY = Device("a quarter, and activations on the host, with delays", 0.25, latency="copy:300,event:60,wait:60,launch:40", away=True)
# Steps on the host that are late, by up to so many microseconds a parameter; none there.
LATE = Device("a quarter, and steps on the host that are late", 0.25, variables=(("CASTOR_UPDATE_DELAY", "20000"),), steps="host")
LATE_TOO = Device("an eighth, and steps on the host that are late", 0.125, variables=(("CASTOR_UPDATE_DELAY", "3000"),), latency="copy:300,event:60,launch:40")
LENT = Device("nine tenths, and steps on the host that are late", 0.9, variables=(("CASTOR_UPDATE_DELAY", "3000"),), steps="host")
IN_PARTS = Device("a quarter, and steps in parts", 0.25, options=("CASTOR_DEVICE_STEP=parts",), steps="parts")
STATIC = Device("fixed shares", options=("CASTOR_PLACEMENT=static", "CASTOR_OFFLOAD_OPTIM_FRAC=1", "CASTOR_OFFLOAD_PARAM_FRAC=0.5"))
# The CPU's store has what an optimizer gets before it comes to the device.
HOST_SHORT = Device("a half, and a budget of the host's memory", 0.5, options=("CASTOR_MEMORY_BUDGET=1G",))
OVERFLOW = Device("half of what it needs, and host memory for the rest", overflows=True, part=0.5, options=("CASTOR_OVERFLOW=1G",))
# Drivers that map no pages of the host, and those that allocate none there either.
NO_PAGES = {"variables": (("SIM_REFUSES", "host-pages"),), "says": r"device \d+ maps no memory of the host at its addresses: "}
FIXED = tuple(dataclasses.replace(device, name=f"{device.name}, in homes that stay", **NO_PAGES)
              for device in (*SHARES[:2], SMALL, slow(0.25), delayed(1), delayed(2), STATIC))
FIXED_ROOM = dataclasses.replace(ROOM, name="all of it, in homes that stay", **NO_PAGES)
NO_HOMES = Device("no memory of the host", 0.25, variables=(("SIM_REFUSES", "host-pages,host-alloc"),), homes=False,
                  says="this process trains without the plugin: model data stays where the script has it: device 0 maps no memory of the host")
FAILS = Device("calls that fail", 0.25, fails=True)
OTHER_ALLOCATORS = [Device(f"a quarter, but {name}", 0.25, variables=((name, value),), homes=False,
                           says="this process trains without the plugin: model data stays where the script has it: PyTorch allocates ")
                    for name, value in (("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"), ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"))]
TYPES = "bf16", "fp16"  # with which names of cases/halves.py begin
SEEDS = 1, 2, 3, 4, 5, 6
FAMILIES = ("sgd", "momentum", "nesterov", "sgd-fused"), ("adamw", "adam", "adamw-fused", "adamw-single", "adamw-capturable", "adamw-tensor", "amsgrad")

# Of the short length, beside each case with one optimizer and one share: what waits, and what needs room.
ALSO = {
    SMALL: ("gpt:adamw", "wide:momentum", "batch_grows:adamw"),
    UNBOUND: ("gpt:momentum", "many_activations:adamw"),
    LATE: ("touched_between_micro_steps:adam", "touched_between_micro_steps:sgd", "parameters_of_another_class:adam", "parameters_of_another_class:adamw-fused", "touched_after_steps:adam", "touched_after_steps:sgd", "mlp:adamw", "gpt:momentum", "tied:adam", "edited_in_place:sgd", "scaled:adamw", "half_on_the_host:adamw", "closure:adamw",
           "written_by_a_copy:momentum", "recomputed:adamw-single", "second_stream:amsgrad", "trains_on_a_stream:nesterov"),
    LATE_TOO: ("touched_between_micro_steps:momentum", "touched_between_micro_steps:adamw-fused", "touched_after_steps:momentum", "touched_after_steps:adamw-fused", "trains_on_a_stream:adamw-fused", "touched_after_steps:adamw-single", "gpt:adamw", "steps_on_a_stream:momentum", "written_on_a_stream:adamw", "models_in_threads:adamw", "accumulation:adamw"),
    LENT: ("parameters_of_another_class:momentum", "parameters_of_another_class:adamw-single", "touched_after_steps:adam", "gpt:adamw", "edited_in_place:adamw", "mlp:adamw-fused", "steps_on_a_stream:amsgrad"),
    IN_PARTS: ("mlp:adamw", "gpt:momentum", "tied:adam"),
    STATIC: ("mlp:adamw", "optimizer_before_device:momentum", "half_on_the_host:adamw", "trains_on_both_sides:sgd"),
    slow(0.25): ("mlp:adamw", "accumulation:momentum", "lstm:adam"),
    delayed(1): ("second_stream:adamw", "steps_on_a_stream:momentum", "pinned_batches:adamw", "written_by_a_copy:adamw", "written_on_a_stream:adamw",
                 "written_within_a_step:sgd"),
    slow(0.125): ("streams_while_a_thread_moves:sgd", "streams_while_a_thread_moves:adamw"),
    delayed(2): ("trains_on_a_stream:adamw-fused", "scaled:adamw", "edited_in_place:adam", "recomputed:sgd"),
    AWAY: ("mlp:adamw", "saved_and_edited:adamw", "gone_back_twice:momentum", "slopes_of_slopes:sgd", "goes_back_within:adamw", "passes_without_backward:adamw", "saved_in_all_ways:momentum", "layers_that_learn_their_shapes:sgd",
           "functions_of_models:sgd", "models_in_threads:adamw", "fails_within_a_model:momentum",
           "gpt:momentum", "tied:adam", "convolution:nesterov", "lstm:adam", "recomputed:sgd", "autocast:adamw", "accumulation:momentum", "gradient_penalty:sgd"),
    AWAY_AND_SMALL: ("four_times_the_device:momentum",),
    AWAY_SLOWLY: ("mlp:momentum", "gpt:adamw", "trains_on_a_stream:adamw", "steps_on_a_stream:momentum"),
    ROOM: ("mlp:adamw", "after_a_failure:adamw", "views_of_one_buffer:momentum", "given_by_dlpack:momentum", "given_as_an_array:adamw", "given_as_a_number:sgd", "compiled_steps:adamw"),
    OTHER_ALLOCATORS[0]: ("mlp:adamw",),
    expandable(0.25): ("batch_grows:momentum", "cache_emptied:adamw"),
    OVERFLOW: ("batch_grows:momentum",),
    FIXED[0]: ("mlp:momentum", "written_by_a_copy:adamw"),
    FIXED[1]: ("tied:adamw", "written_within_a_step:sgd"),
    NO_HOMES: ("mlp:momentum",),
    FAILS: tuple(f"mlp:momentum@{fault}" for fault in ("cuMemCreate:2:2", "cuMemMap:2:999", "cuStreamWaitEvent:1*:999")),
    SHARES[2]: ("of_castor:castor-hybrid",),  # behind the others, which have devices by their number
}
# What Castor and PyTorch call while `mlp` trains, under a budget. Any other call is an error of the row: cudaEventRecord and cudaEventQuery,
# for instance, are of memory that a stream frees which did not allocate it, as copies of a step must not be.
CALLED = """cuInit cuDeviceGetAttribute cuDevicePrimaryCtxRetain cuCtxGetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2
cuThreadExchangeStreamCaptureMode cuMemGetInfo_v2 cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuMemAddressReserve
cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess cuMemcpyAsync cuMemsetD32Async cuPointerGetAttribute cuStreamCreate cuStreamWaitEvent cuStreamSynchronize
cuEventCreate cuEventRecord cuEventQuery cuFuncGetParamInfo cuKernelGetParamInfo cuLibraryLoadData cuLibraryGetKernel cuLaunchKernel
cudaMalloc cudaHostAlloc cudaMemcpyAsync cudaStreamSynchronize cudaStreamWaitEvent cudaStreamIsCapturing cudaStreamCreateWithPriority
cudaEventCreateWithFlags cudaEventRecordWithFlags cudaEventSynchronize cudaEventDestroy cudaDeviceSynchronize
cudaDeviceGetStreamPriorityRange __cudaLaunchKernel cublasCreate_v2 cublasSetStream_v2 cublasSetWorkspace_v2
cublasSgemm_v2 cublasLtMatmulDescCreate cublasLtMatrixLayoutCreate cublasLtMatmulAlgoGetHeuristic""".split()
# PyTorch asks for the first three in destructors, and ends the process when they fail; where the last one fails it computes in another way,
# by a kernel that has no numbers here.
SPARED = "cuDevicePrimaryCtxGetState", "cudaGetDevice", "cudaSetDevice", "cublasLtMatmul"
MEMORY = "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuStreamCreate", "cuEventCreate", "cudaMalloc", "cudaHostAlloc"
# Which call fails, of so many. Not the last one of all: how often events are asked for changes from run to run.
WHICH = {"first": lambda calls: 1, "late": lambda calls: calls - calls // 8, "each": lambda calls: "1*", "middle": lambda calls: (calls + 1) // 2}
EACH_FAILS = [(FAILS, f"mlp:momentum@{call}:{which}:2") for which in ("first", "each") for call in MEMORY]
EACH_FAILS += [(FAILS, f"mlp:momentum@{call}:{which}:{13 if call.startswith('cublas') else 999}") for which in WHICH for call in CALLED
               if which != "middle" or not call.startswith(("cuda", "cublas", "__cuda"))]
# Cases whose subject has an optimizer; the others have one after the other.
WITH = {"gpt": "adamw", "written_through_addresses": "adamw", "mlp": "momentum", "tied": "adamw", "convolution": "nesterov", "lstm": "adam",
        "batch_grows": "adamw", "closure": "lbfgs", "scaled": "adamw-fused"}
# How often homes come back to a device that has nearly enough: at least, and at most. These cases have rows of
# their own.
BACK = {"memory_short_once": (1, 20), "memory_short_each_second_step": (0, 20)}
# What has only the rows that are written for it.
ONLY = (*BACK, "of_castor", "four_times_the_device")
# Cases that need more room than a device has on which plain PyTorch runs out of memory: their peak is not of model data, or one of its
# segments (20 MiB) finds no room beside what the gradients of the first step, streams and copies have divided.
ROOMY = ("after_a_failure", "streams_while_a_thread_moves", "functional_calls", "gradients_kept", "line_search", "closure", "gradient_penalty",
         "steps_on_a_stream", "data_parallel", "tied", "autocast", "one_flat_parameter")
# Cases that run out of memory, and go on.
FAIL = ("after_a_failure",)
# Of cases/halves.py; micro_steps has rows of its own.
NARROW = "trained", "clipped", "overflowing", "accumulated", "convolved", "text", "written", "resumed"
# Cases in which other code has addresses of what lies outside of homes.
HELD = "given_by_dlpack", "given_as_an_array", "given_as_a_number"
# Cases after which a process is not as it was before.
APART = ("captured", "compiled_steps")
# Cases that a real device cannot run, or that machines with one GPU cannot.
SIMULATED = "written_through_addresses", "on_two_devices"


def narrow(precision, only_short):
    """(device, "case:optimizer") of the cases that CASTOR_PRECISION is for."""
    quarter = Device(f"a quarter, in {precision}", 0.25, precision=precision)
    half = Device(f"a half, in {precision}", 0.5, precision=precision)
    unbound = Device(f"what there is, in {precision}, and plain PyTorch overflows", overflows=True, missing=0.25, precision=precision)
    fourths = Device(f"a half, in {precision}, four micro-steps", 0.5, options=("CASTOR_ACCUMULATE=4",), precision=precision)
    room = Device(f"all of it, in {precision}", precision=precision)
    late = dataclasses.replace(quarter, name=f"{quarter.name}, and steps on the host that are late", variables=LATE.variables, steps="host")
    if only_short:
        return [(quarter, {"bf16": "bf16_clipped:adamw", "fp16": "fp16_overflowing:momentum"}[precision]),
                (late, {"bf16": "bf16_written:momentum", "fp16": "fp16_clipped:adamw"}[precision])]
    words = [f"{precision}_{name}" for name in NARROW]
    every = [f"{word}:{optimizer}" for word in words for optimizer in ("momentum", "adamw")]
    every += [f"{precision}_trained:{optimizer}" for optimizer in ("sgd", "nesterov", "adam", "adamw-fused", "adamw-single", "adagrad")]
    slow = dataclasses.replace(quarter, name=f"{quarter.name}, delayed", latency=delayed(1).latency)
    lent = dataclasses.replace(LENT, name=f"{LENT.name}, in {precision}", precision=precision)
    in_parts = dataclasses.replace(quarter, name=f"{quarter.name}, and steps in parts", options=IN_PARTS.options, steps="parts")
    found = [(device, word) for device in (room, half, quarter, slow, in_parts) for word in every]
    found += [(device, word) for device in (late, lent) for word in every if not word.endswith((":nesterov", ":adagrad"))]
    found += [(unbound, f"{precision}_{word}") for word in ("clipped:adamw", "clipped:momentum")]
    return found + [(fourths, f"{precision}_micro_steps:{optimizer}") for optimizer in ("momentum", "adamw")]


def short(cases):
    """(device, "case:optimizer") of the short length; `cases`: the optimizers of each case by its name."""
    found = []
    for number, (name, optimizers) in enumerate((name, cases[name]) for name in cases if name not in ONLY and not name.startswith(TYPES)):
        optimizer = WITH.get(name) or optimizers[number % len(optimizers)]
        found.append((SHARES[number // len(SHARES) % len(SHARES)], f"{name}:{optimizer}"))
    found += [(device, word) for device, words in ALSO.items() for word in words]
    return found + [row for precision in TYPES for row in narrow(precision, True)]


def in_pairs(number, name, optimizers):
    """Rows of one case: an eighth with an SGD and with an Adam, and each other kind of device once. Optimizers, shares and seeds change from
    case to case, so that any two of device, share and optimizer meet in some case, and each case meets each kind of device."""
    eighth = [some[number % len(some)] for family in FAMILIES for some in [[one for one in optimizers if one in family]] if some]
    rest = [one for one in optimizers if one not in eighth] or optimizers
    shares = [tuple(PARTS)[(number + k) % len(PARTS)] for k in range(3)]
    kinds = SHARES[number % 2], expandable(shares[0]), slow(shares[1]), (STATIC, ROOM)[number // 2 % 2], delayed(SEEDS[number // 3 % len(SEEDS)], shares[2])
    found = [(SHARES[-1], one) for one in eighth] + [(device, rest[(number + 3 * k) % len(rest)]) for k, device in enumerate(kinds)]
    return [(device, f"{name}:{optimizer}") for device, optimizer in found]


def everything(cases):
    """What the long length has beside the short one. All that there is of it is its own product, which takes many hours: rows of a case
    differ in several things at once."""
    found = [row for number, name in enumerate(cases) if name not in (*BACK, "four_times_the_device") and not name.startswith(TYPES) for row in in_pairs(number, name, cases[name])]
    one_each = list(dict.fromkeys(word for device, word in short(cases) if "@" not in word and not device.precision))
    found += [row for precision in TYPES for row in narrow(precision, False)]
    found += [(FIXED[number % len(FIXED)], word) for number, word in enumerate(one_each) if word.partition(":")[0] not in (*ROOMY, *BACK)]
    found += [((AWAY, AWAY_SLOWLY)[number % 2], word) for number, word in enumerate(one_each) if word.partition(":")[0] not in BACK]
    found += [((dataclasses.replace(LATE, steps=""), LATE_TOO)[number % 2], word) for number, word in enumerate(one_each) if word.partition(":")[0] not in BACK]
    found += [(IN_PARTS, word) for word in one_each if word.partition(":")[0] not in BACK]
    found += [(device, "mlp:adamw") for device in (*OTHER_ALLOCATORS, FIXED_ROOM, NO_HOMES)]
    found += [(device, word) for device in (STATIC, HOST_SHORT) for word in one_each if word.partition(":")[0] not in BACK]
    found += [(NEARLY, f"{name}:momentum") for name in BACK]
    found += [((SMALL, UNBOUND)[number % 2], word) for number, word in enumerate(one_each) if word.partition(":")[0] not in (*ROOMY, *BACK)]
    return found + EACH_FAILS


def on_gpu(cases):
    """Of each case, on a real device: all of it, and a half, with one optimizer each, and a quarter; no room that runs short."""
    words = dict.fromkeys(word for device, word in short(cases)
                          if "@" not in word and not device.precision and word.partition(":")[0] not in SIMULATED)
    return [(device, word) for device in (ROOM, *SHARES[:2]) for word in words]
