"""gloo's collectives under real ranks: results right, by arithmetic; count, bytes, elements and dtype recorded."""
import collections
import json
import os
import unittest

import runner
from preload import PreloadTest


class CollectiveTest(PreloadTest):
    def check(self, world):
        self.run_ranks(world, "collective_rank.py", self.folder)
        hooked = [json.load(open(os.path.join(self.folder, f"rank-{rank}.json"))) for rank in range(world)]
        processes = {process.pid: process for process in self.counters() if not process.forked}
        groups = collections.defaultdict(set)
        for rank, result in enumerate(hooked):
            process = processes[result["pid"]]
            found = {}
            dtypes = collections.defaultdict(set)
            elements = collections.Counter()
            for pid, record in self.records():
                if pid != result["pid"] or record.kind != 1:
                    continue
                name = process.names["collective"][record.id]
                dtypes[name].add(record.a - (1 << 32) if record.a == (1 << 32) - 1 else record.a)
                elements[name] += record.c
                groups[rank].add(record.b)
                self.assertGreaterEqual(record.end_ns, record.begin_ns)
            for name, counter in process.collectives.items():
                found[name] = [counter.count, counter.bytes, elements[name]]
            self.assertEqual({name: row[:3] for name, row in result["expected"].items()}, found, f"rank {rank}")
            for name, row in result["expected"].items():
                self.assertIn(row[3], dtypes[name], f"dtype of {name}")
        self.assertEqual(groups[0], {0, 1}, "numbers of the process groups")

    def test_two_ranks(self):
        self.check(2)

    @runner.long
    def test_three_ranks(self):
        self.check(3)

    def test_ddp_trains_as_without(self):
        plain, hooked = (
            # Some versions of gloo print, in pieces, that they are connected, each rank when it is.
            [line for line in self.run_ranks(2, "ddp_rank.py", **how)[0].splitlines() if "0x" in line]
            for how in ({"preload": ()}, {})
        )
        self.assertEqual(len(plain), 1)
        self.assertEqual(plain, hooked)
        calls = [process.collectives["allreduce"].count for process in self.counters() if "allreduce" in process.collectives]
        self.assertEqual(len(calls), 2)
        self.assertGreaterEqual(min(calls), 4)

    def test_coverage_is_complete(self):
        self.python("import torch")
        (process,) = self.counters()
        values = [(gauge.last, gauge.max) for gauge in process.file.gauges]
        hooks = len(process.names["call"])
        self.assertIn((hooks, hooks), values, "HOOKS_FOUND is the number of rows of the table")


if __name__ == "__main__":
    unittest.main()
