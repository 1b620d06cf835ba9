"""The rows of CUDA, NCCL, cuBLAS and cuDNN by effect: each function is called, linked and fetched in the ways that libraries fetch it; its
arguments and its result pass through unchanged, and there is one record of it."""
import unittest

import cuda_rows
import standin
from preload import PreloadTest

NO_DTYPE = (1 << 32) - 1
CALL, COLLECTIVE = 0, 1


class CudaTest(PreloadTest):
    def effects(self, how, layers):
        program = standin.build(self, how, layers)
        out, errors = self.run_program(program)
        self.assertEqual(errors, "")
        rows = [row for row in cuda_rows.rows() if row.layer in layers]
        lines = [line.split(" ", 1) for line in out.splitlines()]
        self.assertEqual([symbol for symbol, _ in lines], [row.symbol for row in rows for _ in standin.RESULTS])
        collectives = cuda_rows.collectives()
        (process,) = self.counters()
        records = [record for _, record in self.records()]
        self.assertEqual(len(records), len(lines), "one record per call")
        for (symbol, line), record in zip(lines, records):
            verdict, *numbers = line.split("|")
            result, size, stream, object, device = (int(number) for number in numbers)
            with self.subTest(symbol=symbol, result=result):
                self.assertEqual(verdict, "good")
                self.assertLessEqual(record.begin_ns, record.end_ns)
                self.assertEqual(record.bytes, size % (1 << 64))
                if symbol in collectives and result == 0:
                    self.assertEqual(record.kind, COLLECTIVE)
                    self.assertEqual(process.names["collective"][record.id], collectives[symbol])
                    self.assertEqual((record.c, record.a >> 32), (stream, device % (1 << 32)))
                    continue
                per_thread = symbol.endswith(("_ptsz", "_ptds")) and result == 0
                self.assertEqual(record.kind, CALL)
                self.assertEqual(process.names["call"][record.id], symbol)
                self.assertEqual(record.a, stream or (2 if per_thread else 0))
                self.assertEqual(record.b, object % (1 << 64))
                self.assertEqual(record.c, (result << 32) | (device % (1 << 32)))

    def test_linked(self):
        self.effects("linked", cuda_rows.LAYERS)

    def test_fetched_by_dlsym(self):
        # cuDNN finds its own parts in this way, under the names of the functions that the program calls.
        self.effects("dlsym", [layer for layer in cuda_rows.LAYERS if layer != "CUDNN"])

    def test_fetched_by_cuGetProcAddress(self):
        self.effects("cuGetProcAddress", ("CUDA_DRIVER",))


if __name__ == "__main__":
    unittest.main()
