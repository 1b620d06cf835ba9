"""The hooks on the simulated devices: PyTorch's own CUDA wheel, unmodified."""
import json
import os
import re
import subprocess
import sys
import unittest

from cuda_rows import ROOT
from preload import FOLDER, LIBRARY, LIMIT_S, PreloadTest

sys.path.insert(0, os.path.join(ROOT, "tests", "sim"))
sys.path.insert(0, os.path.join(ROOT, "tests", "launcher"))
import runner  # noqa: E402
import schema  # noqa: E402
import simulated  # noqa: E402

CASTOR = os.path.join(os.path.dirname(os.path.dirname(LIBRARY)), "bin", "castor")

TRAIN = """
import ctypes, json, torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = torch.arange(1024, dtype=torch.float32).view(16, 64)
for _ in range(3):
    model(data.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
launches = ctypes.CDLL("libcastor-sim.so").sim_launch_count
launches.restype = ctypes.c_uint64
print(json.dumps({"launches": launches(), "reserved": torch.cuda.memory_reserved(), "copies": 3 * data.nbytes + sum(p.nbytes for p in model.parameters())}))
"""

# Model data of 128 MiB, beside what the steps need.
HOMES = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.ones(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
"""

# The same, all of it on the device for longer than memory is sampled at most (trace/sampler.c), until something needs its room.
SHORT_LATE = HOMES + """
import time
time.sleep(3)
torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
"""

WIDE = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.Linear(2048, 512), torch.nn.Linear(512, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    loss = model(torch.ones(64, 1024, device="cuda")).sum()
    if not sys.argv[1]:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
torch.cuda.synchronize()
"""


class LeftOutTest(PreloadTest):
    def test_a_torch_without_devices_to_simulate(self):
        torch = os.path.join(self.folder, "torch")
        os.makedirs(os.path.join(torch, "lib"))
        open(os.path.join(torch, "__init__.py"), "w").close()
        for version, cuda, library, why in (
            ("2.11.0+cpu", None, False, "built for the CPU"),
            ("2.11.0", "13.0", False, "built for the CPU"),
            ("2.10.0+cu128", "12.8", True, "built for CUDA 12.8"),
            ("2.15.0+cu132", "13.2", True, "built for CUDA 13.2"),
        ):
            with open(os.path.join(torch, "version.py"), "w") as file:
                file.write(f"from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n")
            if library:
                open(os.path.join(torch, "lib", "libtorch_cuda.so"), "w").close()
            # On the torch that is tested this is a failure; scripts/test-torch tests others, of which some cannot be simulated.
            for other, status, said in (("", 1, rf"^FAILED: torch {re.escape(version)} is {why}.*make setup-tests.*\n(?s:.*)0 passed, 1 failed\n$"),
                                        ("1", 0, rf"^left out here: all \(torch {re.escape(version)} is {why}.*\)\n0 passed, 0 failed\n$")):
                done = subprocess.run([sys.executable, os.path.join(simulated.FOLDER, "run.py")], capture_output=True, text=True,
                                      env=dict(runner.environment(), PYTHONPATH=self.folder, TEST_TORCH=other))
                self.assertEqual(done.returncode, status, done.stdout + done.stderr)
                self.assertRegex(done.stdout, said)


class SimulatedTest(PreloadTest):
    @classmethod
    def setUpClass(cls):
        simulated.need()

    def simulated(self, devices):
        before = simulated.environment(devices=devices, base={})
        settings = {name: value for name, value in before.items() if name.startswith("SIM_")}
        return settings, tuple(simulated.preload().split(":"))

    def test_training_on_one_device(self):
        settings, libraries = self.simulated(1)
        plain = json.loads(self.python(TRAIN, preload=libraries, agent=False, **settings)[0])
        out, errors = self.python(TRAIN, preload=(LIBRARY, *libraries), **settings)
        self.assertEqual((json.loads(out), errors), (plain, ""))
        (process,) = self.counters()
        calls = process.calls
        launched = sum(calls[name].count for name in calls if "LaunchKernel" in name)
        self.assertEqual(launched, plain["launches"])
        self.assertEqual(calls["cudaMalloc"].bytes, plain["reserved"])
        self.assertGreaterEqual(calls["cudaMemcpyAsync"].bytes, plain["copies"])
        self.assertEqual(calls["cudaDeviceSynchronize"].count, 1)
        # By gauge.def: parameters and gradients on the device; states are two of each and, for each tensor, a step on the host.
        numel, (param, grad, optim) = 64 * 64 + 64 + 2 * 64 + 64 * 8 + 8, (gauge.last for gauge in process.file.gauges[20:23])
        self.assertEqual((param, grad, optim), (4 * numel, 4 * numel, 8 * numel))
        self.assertEqual([gauge.last for gauge in process.file.gauges[2:5]], [param, grad, optim + 6 * 4])
        # The rest of what PyTorch has allocated there.
        self.assertEqual(process.file.gauges[23].last, plain["reserved"] - param - grad - optim)

    def test_questions_are_recorded_when_the_answer_is_yes(self):
        settings, libraries = self.simulated(1)
        out, _ = self.python("""
import ctypes, torch
engine = ctypes.CDLL("libcastor-sim.so")
x, event = torch.ones(10, device="cuda"), torch.cuda.Event()
engine.sim_hang_set(b"launch:1")
x.add_(1)
event.record()
stream = torch.cuda.current_stream()
answers = [(event.query(), stream.query()) for _ in range(5)]
engine.sim_hang_set(b"")
torch.cuda.synchronize()
print(answers, event.query(), stream.query())
""", preload=(LIBRARY, *libraries), **settings)
        self.assertEqual(out, f"{[(False, False)] * 5} True True\n")
        (process,) = self.counters()
        self.assertEqual([process.calls[name].count for name in ("cudaEventQuery", "cudaStreamQuery")], [1, 1])

    def test_expandable_segments_are_seen_as_driver_calls(self):
        why = simulated.left_out(whole=True)
        if why:
            self.skipTest(f"{why}: later torches ask NVML about segments")
        settings, libraries = self.simulated(1)
        text = "import torch; x = torch.empty(50 << 20, dtype=torch.uint8, device='cuda'); print(torch.cuda.memory_reserved())"
        reserved, _ = self.python(text, preload=(LIBRARY, *libraries), PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", **settings)
        (process,) = self.counters()
        for name in ("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"):
            self.assertGreater(process.calls[name].count, 0, name)
        self.assertEqual(process.calls["cuMemCreate"].bytes, int(reserved))
        self.assertEqual(process.calls["cuMemMap"].bytes, int(reserved))
        self.assertNotIn("cudaMalloc", process.calls)

    def test_collectives_of_two_ranks(self):
        settings, libraries = self.simulated(2)
        results = []
        for preload in (libraries, (LIBRARY, *libraries)):
            self.run_ranks(2, "simulated_rank.py", self.folder, preload=preload, **settings)
            results.append([json.load(open(os.path.join(self.folder, f"rank-{rank}.json"))) for rank in range(2)])
        self.assertEqual(*([result["digest"] for result in ranks] for ranks in results))
        processes = {process.pid: process for process in self.counters() if not process.forked}
        for result in results[1]:
            process = processes[result["pid"]]
            found = {name: (counter.count, counter.bytes) for name, counter in process.collectives.items()}
            once = ("_allgather_base", "_reduce_scatter_base", "broadcast", "reduce", "alltoall_base", "send", "recv")
            self.assertEqual(found, {"allreduce": (3, 12000), "barrier": (1, 0), **{name: (1, 4000) for name in once}})
            calls = {name: (process.calls[name].count, process.calls[name].bytes) for name in process.calls if name.startswith("nccl")}
            self.assertEqual(calls["ncclAllReduce"], (4, 12004))  # that of one number is the barrier
            self.assertEqual(calls["ncclReduceScatter"], (1, 2000))

    def made(self, format):
        done = subprocess.run([CASTOR, "report", self.log_dir, "--format", format], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def report(self, format):
        return json.loads(self.made(format))

    def test_communicators_are_the_same_on_all_ranks(self):
        ranks, script = 4, os.path.join(FOLDER, "nccl_rank.py")
        settings, libraries = self.simulated(ranks)
        started = [subprocess.Popen([sys.executable, script, str(rank), str(ranks), self.folder], stdout=subprocess.PIPE, text=True,
                                    env=self.environment(preload=(LIBRARY, *libraries), agent=False, RANK=rank, **settings))
                   for rank in range(ranks)]
        streams = [process.communicate(timeout=LIMIT_S)[0].split() for process in started]
        self.assertEqual([process.returncode for process in started], [0] * ranks)

        report = self.report("json")
        found = sorted((group["size"], group["ranks"]) for group in report["groups"])
        self.assertEqual(found, [(2, [0, 2]), (2, [0, 2]), (2, [1, 3]), (2, [1, 3]), (4, [0, 1, 2, 3]), (4, [0, 1, 2, 3])])
        labels = [group["label"] for group in report["groups"]]
        self.assertEqual(len(set(labels)), len(labels))
        classes = [(line["operation"], line["bytes"]) for line in report["collective_classes"]]
        # 3 calls of each rank: of 1000 floats on the first communicator, of 2000 on the second.
        self.assertEqual(sorted(classes), sorted([("allreduce", 4 * 3 * 4000), ("allreduce", 4 * 3 * 8000)] + 4 * [("allreduce", 2 * 3 * 4000)]))

        events = self.report("perfetto")["traceEvents"]
        tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
        work = {}
        for event in events:
            if event["ph"] == "X" and event["name"] == "ncclAllReduce":
                key = (event["pid"], tracks[event["pid"], event["tid"]])
                work[key] = work.get(key, 0) + 1
        self.assertEqual(work, {(rank, f"stream {handle}"): 3 for rank in range(ranks) for handle in streams[rank]})

    def test_a_job_that_only_communicates(self):
        settings, libraries = self.simulated(2)
        script = os.path.join(FOLDER, "nccl_rank.py")
        started = [subprocess.Popen([sys.executable, script, str(rank), "2", self.folder, "untold"], stdout=subprocess.PIPE, text=True,
                                    env=self.environment(preload=(LIBRARY, *libraries), agent=False, **settings))
                   for rank in range(2)]
        for process in started:
            process.communicate(timeout=LIMIT_S)
            self.assertEqual(process.returncode, 0)
        report = self.report("json")
        with open(os.path.join(ROOT, "docs", "report.schema.json")) as file:
            self.assertEqual(schema.errors(report, json.load(file)), [])
        self.assertEqual([rank["rank"] for rank in report["ranks"]], [None, None])
        self.assertEqual(report["collectives"]["allreduce"]["count"], 24)
        self.assertTrue(self.report("perfetto")["traceEvents"])
        text, html = self.made("text"), self.made("html")
        self.assertRegex(text, r"\nRanks .*\n +rank +pid .*\n +\? +\d+ .*\n +\? +\d+ ")
        self.assertRegex(text, r"\n +allreduce +\S+ +2 ")
        self.assertIn("no process made an optimizer step or a backward pass", text)
        self.assertIn('"allreduce"', html)

    def castor_run(self, memory, *options, script=HOMES):
        """The report of a script under gemini, as JSON, and what it looks like as text."""
        self.run_program(CASTOR, "run", "--plugin", "gemini", "--log-dir", self.log_dir, *(f"--set={option}" for option in options), "--",
                         sys.executable, "-c", script, preload=(), **simulated.environment(memory=memory, base={}))
        report = self.report("json")
        with open(os.path.join(ROOT, "docs", "report.schema.json")) as file:
            self.assertEqual(schema.errors(report, json.load(file)), [])
        return report, self.made("text")

    def test_homes_slots_and_parts_are_in_the_report(self):
        report, text = self.castor_run("1G", "CASTOR_DEVICE_BUDGET=64M")
        (rank,) = report["ranks"]
        device, tiers, mib = rank["device"], rank["tiers"], 1 << 20
        self.assertLessEqual(device["budget_bytes"], 64 * mib)
        model = {kind: tiers["device"][kind] + tiers["host"][kind] for kind in ("param", "grad", "optim")}
        for kind, least in (("param", 32), ("grad", 32), ("optim", 64)):
            self.assertGreaterEqual(model[kind], least * mib, kind)
            self.assertLess(model[kind], 2 * least * mib, kind)
        self.assertLessEqual(sum(tiers["device"][kind] for kind in model), device["budget_bytes"])
        self.assertGreater(sum(tiers["host"][kind] for kind in model), 64 * mib)
        self.assertEqual(device["outside_bytes"], 0)
        slots = device["slots"]
        self.assertGreater(slots["uses"], 0)
        self.assertEqual(slots["uses"], slots["home_reads"] + slots["in_time"] + slots["waits"])
        # Slots, and each step's parts: what is on the host comes, and goes but for gradients.
        self.assertGreater(device["link"]["to_device"]["bytes"], slots["copied_bytes"] + 4 * 64 * mib)
        self.assertGreater(device["link"]["to_host"]["bytes"], 4 * 48 * mib)
        self.assertIn("\nDevices\n  rank 0    homes: at most ", text)

    def test_rescues_are_in_the_report(self):
        report, text = self.castor_run("480M", script=SHORT_LATE)
        (rank,) = report["ranks"]
        flips = rank["device"]["flips"]
        self.assertIsNone(rank["device"]["budget_bytes"])
        self.assertGreater(flips["rescues"], 0)
        self.assertGreater(flips["to_host"]["bytes"], 0)
        event = report["chunks"]["events"]["home to host, for an allocation"]
        self.assertEqual((event["count"], event["bytes"]), (flips["to_host"]["count"], flips["to_host"]["bytes"]))
        self.assertRegex(text, r"homes: \d+ moved to the host, .* MiB, since \d+ allocations? had no room; took ")
        on_device = zip(*(rank["memory"]["bytes"][f"device_{kind}"] for kind in ("param", "grad", "optim")))
        self.assertGreater(max(map(sum, on_device)), sum(rank["tiers"]["device"][kind] for kind in ("param", "grad", "optim")))

    def test_the_doctor_tries_each_device(self):
        for fails, state in (({}, "ok"), ({"SIM_HOST_MEMORY": "8M"}, "warn")):
            settings = {**simulated.environment(devices=2, memory="1G", base={}), **fails}
            out, _ = self.run_program(CASTOR, "doctor", "--format", "json", "--", sys.executable, preload=(), **settings)
            checks = {check["name"]: (check["state"], check["value"], check["advice"]) for check in json.loads(out)["checks"]}
            for device in (0, 1):
                self.assertEqual(checks[f"{device}: pages"][0], "ok", checks)
                self.assertEqual(checks[f"{device}: host pages"][0], state, checks)
                self.assertEqual(f"{device}: flips" in checks and f"{device}: link" in checks, state == "ok")
                self.assertEqual(bool(checks[f"{device}: host pages"][2]), state == "warn")

    def test_the_doctor_says_what_a_driver_without_host_pages_does(self):
        rows = (
            ("host-pages", "0: host pages", r"what is on the host stays there, and nothing is moved when memory runs out: give CASTOR_DEVICE_BUDGET"),
            ("host-pages,host-alloc", "0: pages", r"model data stays where scripts have it"),
        )
        for refuses, line, advice in rows if runner.LENGTH == "all" else rows[:1]:
            settings = {**simulated.environment(memory="1G", base={}), "SIM_REFUSES": refuses}
            out, _ = self.run_program(CASTOR, "doctor", "--format", "json", "--", sys.executable, preload=(), **settings)
            checks = {check["name"]: (check["state"], check["value"], check["advice"]) for check in json.loads(out)["checks"]}
            self.assertEqual(checks[line][0], "warn", checks)
            self.assertRegex(checks[line][1], r"device 0 maps no memory of the host at its addresses: .* \(error 801\)")
            self.assertRegex(checks[line][2], advice)
            self.assertNotIn("0: flips", checks)

    def test_a_budget_too_small_for_an_operand_or_a_part_is_told(self):
        rows = (
            ("24M", "", r"device 0: slots have 4\.0 MiB, and products read a parameter of shape \(2048, 1024\), 8\.0 MiB, from host memory; parts have 9\.0 MiB, and the step "
                        r"of a parameter of shape \(2048, 1024\), 32\.0 MiB, goes over the link\. CASTOR_DEVICE_BUDGET=86M would do"),
            ("80M", "", r"device 0: parts have 30\.0 MiB, and the step of a parameter of shape \(2048, 1024\), 32\.0 MiB, goes over the link\. CASTOR_DEVICE_BUDGET=86M would do"),
            ("24M", "evaluates", r"device 0: slots have 4\.0 MiB, and products read a parameter of shape \(2048, 1024\), 8\.0 MiB, from host memory\. CASTOR_DEVICE_BUDGET=72M would do"),
            ("auto", "", ""),
            ("86M", "", ""),  # as it was told
        )
        for number, (budget, evaluates, line) in enumerate(rows if runner.LENGTH == "all" else (rows[0], rows[-1])):
            with self.subTest(budget=budget, evaluates=evaluates):
                _, errors = self.run_program(CASTOR, "run", "--plugin", "gemini", "--log-dir", f"{self.log_dir}-{number}", f"--set=CASTOR_DEVICE_BUDGET={budget}", "--",
                                             sys.executable, "-c", WIDE, evaluates, preload=(), **simulated.environment(memory="4G", base={}))
                self.assertRegex(errors, rf"^{'castor: ' if line else ''}{line}{chr(92) + 'n' if line else ''}castor: report: [^\n]*\n$")

    def test_process_groups_are_the_same_on_all_ranks(self):
        settings, libraries = self.simulated(2)
        self.run_ranks(2, "simulated_rank.py", self.folder, preload=(LIBRARY, *libraries), **settings)
        groups = [(group["label"], group["size"], group["ranks"]) for group in self.report("json")["groups"]]
        self.assertEqual(groups, [("0", 2, [0, 1])])


if __name__ == "__main__":
    unittest.main()
