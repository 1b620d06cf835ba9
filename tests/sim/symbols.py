"""Whether the simulation defines what PyTorch's libraries import, and what NVIDIA's runtime exports: symbols.py LIBRARIES

LIBRARIES is the folder of the simulation. Reads with nm; loads nothing.
"""
import glob
import importlib.util
import os
import re
import subprocess
import sys

# Interoperation with graphics, and with SoC parts that this platform has not.
NOT_OURS = re.compile("EGL|GL[A-Z]|VDPAU|NvSci")
OF_LIBRARY = {"libcudart.so.13": "_*cuda", "libcublas.so.13": "cublas", "libcublasLt.so.13": "cublasLt",
              "libnccl.so.2": "p?nccl"}


def names(path, which):
    """The dynamic symbols of a library, with their versions: `which` is --defined-only or --undefined-only."""
    done = subprocess.run(["nm", "-D", which, path], stdout=subprocess.PIPE, text=True, check=True)
    found = (line.split()[-1] for line in done.stdout.splitlines())
    return {re.sub("@+", "@", name) for name in found}


def say(name, missing):
    print(f"FAIL {name}: {len(missing)} missing: {' '.join(sorted(missing)[:12])}" if missing else f"ok {name}")
    return bool(missing)


def main():
    here = sys.argv[1]
    torch_lib = os.path.join(os.path.dirname(importlib.util.find_spec("torch").origin), "lib")
    nvidia = list(importlib.util.find_spec("nvidia").submodule_search_locations)[0]
    have = {library: names(os.path.join(here, library), "--defined-only") for library in OF_LIBRARY}

    missing = set()
    for path in glob.glob(os.path.join(torch_lib, "*.so")):
        for name in names(path, "--undefined-only"):
            for library, prefix in OF_LIBRARY.items():
                of_nccl = library.startswith("libnccl") and re.match("p?nccl[A-Z]", name)
                if (name.endswith("@" + library) or of_nccl) and name not in have[library]:
                    missing.add(name)
    failed = say("imports_of_torch", missing)

    real = names(os.path.join(nvidia, "cu13", "lib", "libcudart.so.13"), "--defined-only")
    wanted = {name for name in real if re.match("_*cuda[A-Z]", name) and not NOT_OURS.search(name)}
    failed |= say("exports_of_the_runtime", wanted - have["libcudart.so.13"])
    sys.exit(failed)


if __name__ == "__main__":
    main()
