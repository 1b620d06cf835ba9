"""The report of jobs with pipelines: each rank's passes in their order, in every format."""
import json
import os
import re
import subprocess
import tempfile
import unittest

import jobs
import runner

# Worked out by hand from interpose/parallel/pipeline.h: 1F1B of 2 stages and 4 microbatches; and with 2 parts on each stage, as F or B, microbatch:part.
PLAIN = ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
INTERLEAVED = ["F0:0 F1:0 F0:2 F1:2 F2:0 B0:2 F3:0 B1:2 F2:2 B0:0 F3:2 B1:0 B2:2 B3:2 B2:0 B3:0",
               "F0:1 F1:1 F0:3 B0:3 F1:3 B1:3 F2:1 B0:1 F3:1 B1:1 F2:3 B2:3 F3:3 B3:3 B2:1 B3:1"]

ZERO_BUBBLE = ["F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3", "F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3"]


def reports(chunks):
    """The text, JSON and trace events of a job that trains on three batches and evaluates one."""
    with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
        script = os.path.join(jobs.FOLDER, "pipeline_traced_rank.py")
        done = jobs.start([*runner.ranks(2)[1:], script, str(chunks), "4"], jobs.GEMINI, cwd=folder, EXPLICIT_TEST_FOUND=folder)
        if done.returncode:
            raise AssertionError(f"status {done.returncode}\n{done.stdout}\n{done.stderr}")

        def report(form):
            command = [jobs.castor(), "report", os.path.join(folder, "log"), "--format", form]
            return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

        return report("text"), json.loads(report("json")), json.loads(report("perfetto"))["traceEvents"]


class PipelineReport(unittest.TestCase):
    def check(self, chunks, orders, idle):
        text, report, events = reports(chunks)
        parts = max(chunks, 1) * 2
        pipeline = report["pipeline"]
        self.assertEqual([pipeline[name] for name in ("stages", "parts", "microbatches", "batch", "idle_of_batches", "on_device")], [2, parts, 4, 3, 3, False])
        self.assertAlmostEqual(pipeline["ideal_idle"], idle)
        self.assertEqual([(row["rank"], row["stage"]) for row in pipeline["ranks"]], [(0, 0), (1, 1)])
        self.assertEqual([" ".join(one["label"] for one in row["passes"]) for row in pipeline["ranks"]], orders)
        for row in pipeline["ranks"]:
            for one in row["passes"]:
                self.assertGreaterEqual(one["seconds"], 0.01)  # the layer sleeps as long
                self.assertEqual(one["part"] % 2, row["stage"])
            for before, after in zip(row["passes"], row["passes"][1:]):
                self.assertLessEqual(before["at_seconds"] + before["seconds"], after["at_seconds"] + 1e-9)
        self.messages(pipeline)
        lines = re.findall(r"^  rank (\d)    (\S+)$", text, re.M)
        self.assertEqual([(int(rank), " ".join(re.findall(r"[FB]\d(?::\d)?", line))) for rank, line in lines], list(enumerate(orders)))
        self.perfetto(events, parts, orders, pipeline)

    def messages(self, pipeline):
        """A forward begins after the part before has ended it, and a backward after the part behind."""
        passes = {(one["label"][0], int(one["label"][1]), one["part"]): one for row in pipeline["ranks"] for one in row["passes"]}
        for (kind, microbatch, part), one in passes.items():
            source = passes.get((kind, microbatch, part - 1 if kind == "F" else part + 1))
            if source:
                self.assertLessEqual(source["at_seconds"] + source["seconds"], one["at_seconds"] + 1e-9)

    def perfetto(self, events, parts, orders, pipeline):
        tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
        slices = sorted((event for event in events if event.get("cat") == "pass"), key=lambda event: event["ts"])
        names = {part: f"pipeline, stage {part % 2}" + (f", part {part}" if parts > 2 else "") for part in range(parts)}
        for part, name in names.items():
            own = [event for event in slices if tracks[event["pid"], event["tid"]] == name]
            self.assertEqual({event["pid"] for event in own}, {part % 2})
            order = [label.split(":")[0] for label in orders[part % 2].split() if parts == 2 or label.endswith(f":{part}")]
            for batch in (1, 2, 3):
                self.assertEqual([event["name"] for event in own if event["args"]["batch"] == batch], order)
            self.assertEqual([event["name"] for event in own if event["args"]["batch"] == 4], ["F0", "F1", "F2", "F3"])  # the evaluation
        self.assertEqual(len(slices), 4 * parts * 7)
        trained = [[event for event in slices if event["args"]["batch"] == batch] for batch in (1, 2, 3)]
        whole = sum(max(event["ts"] + event["dur"] for event in batch) - batch[0]["ts"] for batch in trained)
        for row in pipeline["ranks"]:
            busy = sum(event["dur"] for batch in trained for event in batch if event["pid"] == row["rank"])
            self.assertAlmostEqual(row["idle"], 1 - busy / whole, places=6)

    def test_of_two_stages(self):
        self.check(0, PLAIN, 1 / 5)

    @runner.long
    def test_of_the_zero_bubble_schedule(self):
        text, report, events = reports(-1)
        pipeline = report["pipeline"]
        self.assertEqual([" ".join(one["label"] for one in row["passes"]) for row in pipeline["ranks"]], ZERO_BUBBLE)
        self.assertAlmostEqual(pipeline["ideal_idle"], 1 / 13)
        lines = re.findall(r"^  rank \d    (\S+)$", text, re.M)
        self.assertEqual([" ".join(re.findall(r"[FBW]\d", line)) for line in lines], ZERO_BUBBLE)
        trained = [event["name"] for event in events if event.get("cat") == "pass" and event["args"]["batch"] == 1]
        self.assertEqual(sorted(trained), sorted(" ".join(ZERO_BUBBLE).split()))

    @runner.long
    def test_of_interleaved_stages(self):
        self.check(2, INTERLEAVED, 1 / 9)


if __name__ == "__main__":
    unittest.main()
