"""The tables and the declarations of CUDA, NCCL, cuBLAS and cuDNN against the real headers, of wheels or of a toolkit: a row whose
parameters are not those of the header, a wrong ABI version, a type of another size stop this test's build."""
import os
import re
import subprocess
import sys
import unittest

import cuda_rows
import runner
from cuda_rows import ROOT
from preload import PreloadTest

# The wheels of CUDA bring the headers with them.
WHEELS = [os.path.join(path, "nvidia", part, "include") for path in sys.path for part in ("cu13", "nccl", "cudnn")]
FOLDERS = (*WHEELS, "/usr/local/cuda/include", "/usr/local/include", "/usr/include")


def folder_of(*headers):
    """The include folders that hold the headers; those of wheels for another CUDA than 13 lie elsewhere (scripts/test-torch)."""
    found = []
    for header in headers:
        folder = next((folder for folder in FOLDERS if os.path.exists(os.path.join(folder, header))), None)
        if not folder and os.environ.get("TEST_TORCH"):
            raise unittest.SkipTest(f"no {header} here")
        if not folder:
            raise runner.lacking(f"there is no {header}")
        found.append(folder)
    return found


HEADERS = ("cuda.h", "cudaTypedefs.h", "cuda_runtime_api.h", "nccl.h", "cublas_api.h", "cublasLt.h", "cudnn.h")

# The names of the functions are macros in the headers (cuMemAlloc is cuMemAlloc_v2): rows are compared by the types of
# cudaTypedefs.h, which every version and variant has.
ROWS = """
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudaTypedefs.h>
#include <nccl.h>
#define SAME(one, other, what) _Static_assert(__builtin_types_compatible_p(one, other), what " is not as in the header");
#define RUNTIME(function, effect, parameters, ...) typedef cudaError_t row_##function parameters; SAME(row_##function, RUNTIME_TYPE_##function, #function)
#define RUNTIME_PER_THREAD(function, effect, parameters, ...) typedef cudaError_t row_##function parameters; SAME(row_##function, RUNTIME_TYPE_##function, #function)
typedef cudaError_t kernel_launch(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t);
RUNTIME_TYPES
#include "interpose/hooks/table/cuda_runtime.def"
#define DRIVER(version, function, symbol, effect, parameters, ...) \\
    typedef CUresult row_##symbol parameters; SAME(row_##symbol *, PFN_##function##_v##version, #symbol)
#define DRIVER_PER_THREAD(version, function, symbol, variant, effect, parameters, ...) \\
    typedef CUresult row_##symbol##variant parameters; \\
    SAME(row_##symbol##variant *, PFN_##function##_v##version##variant, #symbol #variant)
#include "interpose/hooks/table/cuda_driver.def"
#define CALL(version, function, symbol, parameters) \\
    typedef CUresult call_##symbol parameters; SAME(call_##symbol *, PFN_##function##_v##version, #symbol)
#include "interpose/hooks/cuda/driver_calls.def"
#define NCCL_CALL(function, parameters, ...) typedef ncclResult_t row_##function parameters; SAME(row_##function, __typeof__(function), #function)
#define NCCL_COMMUNICATOR(function, parameters, ...) NCCL_CALL(function, parameters)
#define NCCL_COLLECTIVE(function, operation, parameters, ...) NCCL_CALL(function, parameters)
#include "interpose/hooks/table/nccl.def"
"""

BLAS_ROWS = """
#include <cublas_api.h>
#include <cublasLt.h>
#define SAME(one, other, what) _Static_assert(__builtin_types_compatible_p(one, other), what " is not as in the header");
#define CUBLAS(function, parameters, ...) typedef cublasStatus_t row_##function parameters; SAME(row_##function, __typeof__(function), #function)
#define CUBLASLT(function, parameters, ...) CUBLAS(function, parameters)
#include "interpose/hooks/table/cublas.def"
"""

DNN_ROWS = """
#include <cudnn.h>
#define SAME(one, other, what) _Static_assert(__builtin_types_compatible_p(one, other), what " is not as in the header");
#define CUDNN(function, parameters, ...) typedef cudnnStatus_t row_##function parameters; SAME(row_##function, __typeof__(function), #function)
#define CUDNN_BACKEND(function, parameters, ...) CUDNN(function, parameters)
#include "interpose/hooks/table/cudnn.def"
"""

LAYOUT = """
HEADERS
#include <stdio.h>
#include <stddef.h>
#define SIZE(type) printf(#type " %zu\\n", sizeof(type));
#define MEMBER(type, member) printf(#type "." #member " %zu %zu\\n", offsetof(type, member), sizeof(((type *)0)->member));
#define VALUE(constant) printf(#constant " %d\\n", (int)constant);
int main(void) {
#include "shims/cuda/TABLE.def"
}
"""


class HeaderTest(PreloadTest):
    def compile(self, name, text, *flags):
        path = os.path.join(self.folder, name + ".c")
        with open(path, "w") as file:
            file.write(text)
        includes = [flag for folder in dict.fromkeys(folder_of(*HEADERS)) for flag in ("-isystem", folder)]
        done = subprocess.run(
            [os.environ.get("CC", "cc"), "-std=gnu11", "-Wno-deprecated-declarations", "-I", ROOT, *includes, *flags, "-o", path[:-2], path], capture_output=True, text=True
        )
        return done.returncode, done.stderr

    def rows_text(self):
        # The one function that no C header declares is what nvcc's code calls.
        special = {"__cudaLaunchKernel": "kernel_launch"}
        types = ""
        for row in cuda_rows.rows(("CUDA_RUNTIME",)):
            base = re.sub("_pt[sd][sz]$", "", row.symbol)
            types += f"#define RUNTIME_TYPE_{row.symbol} {special.get(base, f'__typeof__({base})')}\n"
        return ROWS.replace("RUNTIME_TYPES", types)

    def test_rows_are_as_in_the_headers(self):
        status, errors = self.compile("rows", self.rows_text(), "-c")
        self.assertEqual(status, 0, errors)

    def test_a_row_that_is_not_stops_the_build(self):
        for wrong in (
            "RUNTIME(cudaFree, FREES, (void *block, int more), (block, more), (0, 0, 0), \"\")",
            "DRIVER(3020, cuMemFree, cuMemFree_v2, FREES, (void *block), (block), (0, 0, 0), \"\")",
            "DRIVER(4000, cuMemFree, cuMemFree_v2, FREES, (CUdeviceptr block), (block), (0, 0, 0), \"\")",
            "CALL(10020, cuMemUnmap, cuMemUnmap, (CUdeviceptr address))",
            "NCCL_CALL(ncclMemFree, (void *block, int more), (block, more), (0, 0, 0), \"\")",
        ):
            macro = wrong.split("(")[0]
            table = {"RUNTIME": "table/cuda_runtime", "DRIVER": "table/cuda_driver", "CALL": "cuda/driver_calls", "NCCL_CALL": "table/nccl"}[macro]
            include = f'#include "interpose/hooks/{table}.def"'
            text = self.rows_text().replace(include, wrong + "\n")
            with self.subTest(row=wrong):
                status, errors = self.compile("wrong", text, "-c")
                self.assertNotEqual(status, 0)
                self.assertRegex(errors, "is not as in the header|PFN_cuMemFree_v4000")

    def same_types(self, table, real, own, least):
        listings = []
        for name, headers in (("real", real), ("own", own)):
            status, errors = self.compile(name, LAYOUT.replace("HEADERS", headers).replace("TABLE", table))
            self.assertEqual(status, 0, errors)
            listings.append(self.run_program(os.path.join(self.folder, name), preload=())[0])
        self.assertEqual(*listings)
        self.assertGreater(listings[0].count("\n"), least)

    def same_rows(self, name, program, table, wrong):
        """The rows of a table are as in the headers; and a row that is not is found."""
        status, errors = self.compile(name, program, "-c")
        self.assertEqual(status, 0, errors)
        row = f'#include "interpose/hooks/table/{table}"'
        self.assertIn(row, program)
        status, errors = self.compile(f"wrong_{name}", program.replace(row, wrong + "\n"), "-c")
        self.assertNotEqual(status, 0)
        self.assertIn("is not as in the header", errors)

    def test_types_are_as_in_the_headers(self):
        real = "#include <cuda.h>\n#include <cuda_runtime_api.h>\n#include <nccl.h>"
        self.same_types("layout", real, '#include "shims/nccl/types.h"', 70)

    def test_cublas_is_as_in_the_headers(self):
        real = "#include <cublas_api.h>\n#include <cublasLt.h>"
        self.same_types("layout_blas", real, '#include "shims/cuda/blas.h"', 60)
        self.same_rows("blas", BLAS_ROWS, "cublas.def", "CUBLAS(cublasSdot_v2, (cublasHandle_t handle, int n), (handle, n), (), \"\")")

    def test_cudnn_is_as_in_the_headers(self):
        self.same_types("layout_dnn", "#include <cudnn.h>", '#include "shims/cuda/dnn.h"', 60)
        wrong = "CUDNN_BACKEND(cudnnBackendExecute, (cudnnHandle_t handle, void *plan), (handle, plan), handle, \"\")"
        self.same_rows("dnn", DNN_ROWS, "cudnn.def", wrong)

    def test_no_abi_of_a_hooked_function_is_unknown(self):
        """cuGetProcAddress may be asked for each of them: from a row's version on, every ABI needs a row."""
        with open(os.path.join(folder_of(*HEADERS)[0], "cudaTypedefs.h")) as file:
            types = re.findall(r"\*PFN_(\w+?)_v(\d+)(_pt[sd][sz])?\)", file.read())
        rows = cuda_rows.abis()
        oldest = {}
        for abi in rows:
            oldest[abi.name] = min(oldest.get(abi.name, 1 << 30), abi.version)
        known = {(abi.name, abi.version, abi.per_thread) for abi in rows}
        needed = {(name, int(version), bool(variant)) for name, version, variant in types if int(version) >= oldest.get(name, 1 << 30)}
        self.assertEqual(needed - known, set())
        with open(os.path.join(folder_of(*HEADERS)[0], "cuda.h")) as file:
            newest = int(re.search(r"#define CUDA_VERSION (\d+)", file.read()).group(1))
        with open(os.path.join(ROOT, "interpose", "hooks", "lookup", "lookup.h")) as file:
            self.assertEqual(int(re.search(r"LOOKUP_KNOWN_VERSION (\d+)", file.read()).group(1)), newest)


if __name__ == "__main__":
    unittest.main()
