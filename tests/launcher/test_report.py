"""`castor report` on traces that the library's recorder wrote (bench/report/generate.c)."""
import collections
import html.parser
import json
import os
import random
import re
import shutil
import stat
import subprocess
import tempfile
import threading
import unicodedata
import unittest

from command import BINARY, LIMIT_S, CommandTest
from schema import errors

MAKE_TRACE = os.path.join(os.path.dirname(BINARY), "make-trace")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!--\x1b[31m\u2028\"'&amp;"


class ReportTest(CommandTest):
    def trace(self, name, *arguments):
        done = subprocess.run([MAKE_TRACE, self.path(name), *arguments], stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return name

    def report(self, *arguments, status=0):
        code, out, err = self.castor("report", *arguments)
        self.assertEqual(code, status, err)
        if status == 0:
            self.assertEqual(err, [])
        return out

    def json(self, *arguments):
        return json.loads(self.report(*arguments, "--format", "json"))


LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\[\\n"])*)"')
SAMPLE = re.compile(rf"(castor_\w+)\{{({LABEL.pattern}(?:,{LABEL.pattern})*)\}} (\S+)")


class Elsewhere(ReportTest):
    """For those who look at runs elsewhere."""

    def samples(self, *arguments):
        """{(metric, labels but run, host and pid): value} of Prometheus's text format."""
        found, metric, seen = {}, None, set()
        for line in self.report(*arguments, "--format", "prometheus").rstrip("\n").split("\n"):
            if line.startswith("# HELP "):
                metric = line.split()[2]
                self.assertNotIn(metric, seen, "a metric has one place")
                seen.add(metric)
            elif line.startswith("# TYPE "):
                self.assertIn(line.split()[2:], [[metric, kind] for kind in ("gauge", "counter", "untyped")])
            else:
                parts = SAMPLE.fullmatch(line)
                self.assertTrue(parts, line)
                self.assertEqual(parts[1], metric)
                labels = {name: re.sub(r"\\(.)", lambda c: {"n": "\n"}.get(c[1], c[1]), text) for name, text in LABEL.findall(parts[2])}
                self.assertEqual(labels.pop("run"), arguments[0])
                key = metric, tuple(sorted((name, text) for name, text in labels.items() if name not in ("host", "pid")))
                self.assertNotIn(key, found)
                found[key] = float(parts[parts.lastindex])
        return found

    def test_prometheus_has_the_figures_of_the_report(self):
        for name, arguments in (("three", ["--ranks", "3"]), ("devices", ["--devices"]), ("budget", ["--budget"]), ("died", ["--die"])):
            with self.subTest(name):
                seen, report = self.samples(self.trace(name, *arguments)), self.json(name)
                self.assertAlmostEqual(seen["castor_job_duration_seconds", ()], report["duration_seconds"], places=6)
                for rank in report["ranks"]:
                    of_rank = ("rank", str(rank["rank"]))
                    self.assertEqual(seen["castor_steps", (of_rank,)], rank["optimizer_steps"])
                    self.assertEqual(seen["castor_rank_end", (("kind", rank["end"]["kind"]), of_rank)], 1)
                    self.assertAlmostEqual(seen["castor_step_seconds", (("quantile", "0.5"), of_rank)], rank["step_seconds"], places=9)
                    for phase, seconds in rank["phases"].items():
                        self.assertAlmostEqual(seen["castor_phase_seconds", (("phase", phase), of_rank)], seconds, places=9)
                    for kind in rank["memory"]["bytes"]:
                        peak = seen["castor_memory_peak_bytes", (("kind", kind), of_rank)] if not kind.startswith("link_") else None
                        if kind in ("param", "grad", "optim"):
                            self.assertEqual(peak, rank["peak_bytes"][kind])
                for part, label in (("calls", "function"), ("collectives", "operation"), ("waits", "reason")):
                    for what, counter in report[part].items():
                        self.assertEqual(seen[f"castor_{part}_total", ((label, what),)], counter["count"])
                        self.assertAlmostEqual(seen.get((f"castor_{part}_seconds_total", ((label, what),)), 0), counter["seconds"], places=7)

    def test_prometheus_takes_any_name(self):
        seen = self.samples(self.trace('a "b" \\c', "--name", HOSTILE))
        names = [dict(labels)["function"] for metric, labels in seen if metric == "castor_calls_total"]
        self.assertEqual(set(names), set(self.json('a "b" \\c')["calls"]))
        self.assertTrue(any('"' in name for name in names))

    def test_tensorboard_reads_the_curves(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self.trace("run", "--ranks", "2")
        self.report("run", "--format", "tensorboard", "-o", "there/events")
        report = self.json("run")
        self.assertEqual(sorted(os.listdir(self.path("there/events/run"))), ["rank0", "rank1"])
        for rank in report["ranks"]:
            events = EventAccumulator(self.path(f"there/events/run/rank{rank['rank']}"), size_guidance={"scalars": 0})
            events.Reload()
            kinds = rank["memory"]["bytes"]
            self.assertEqual(set(events.Tags()["scalars"]), {"step_seconds"} | {f"memory_bytes/{kind}" for kind in kinds})
            steps = events.Scalars("step_seconds")
            self.assertEqual([event.step for event in steps], list(range(2, rank["steps"] + 1)))
            self.assertEqual(len(steps), rank["steps"] - 1)
            for event, seconds, at in zip(steps, rank["step_times"]["seconds"], rank["step_times"]["at_seconds"], strict=True):
                self.assertAlmostEqual(event.value / seconds, 1, places=6)
                self.assertAlmostEqual(event.wall_time - events.FirstEventTimestamp(), at, places=4)
            for kind, values in kinds.items():
                curve = events.Scalars(f"memory_bytes/{kind}")
                self.assertAlmostEqual(max(event.value for event in curve), max(values), delta=1e-7 * max(values))
                self.assertEqual(curve[-1].step, rank["steps"])
                self.assertEqual([event.step for event in curve], sorted(event.step for event in curve))

    def test_tensorboard_needs_a_folder(self):
        self.trace("run")
        self.script("file", "", 0o644)
        for options, text in (([], "-o FOLDER"), (["-o", "-"], "-o FOLDER"), (["-o", "file"], "Not a directory")):
            code, out, err = self.castor("report", "run", "--format", "tensorboard", *options)
            self.assertEqual((code, out, len(err)), (2, "", 1))
            self.assertIn(text, err[0])
        for format in ("prometheus", "tensorboard"):
            code, out, err = self.castor("report", "run", "run", "--format", format, "-o", "out")
            self.assertEqual((code, out, len(err)), (2, "", 1))
            self.assertIn("shows one run", err[0])


class Json(ReportTest):
    def schema(self):
        with open(os.path.join(ROOT, "docs", "report.schema.json")) as file:
            return json.load(file)

    def test_conforms_to_its_schema(self):
        for name, arguments in (("plain", []), ("four", ["--ranks", "4", "--groups"]), ("died", ["--die"]), ("odd", ["--name", HOSTILE]),
                                ("devices", ["--devices"]), ("pipeline", ["--pipeline"]), ("budget", ["--budget"])):
            with self.subTest(name):
                self.assertEqual(errors(self.json(self.trace(name, *arguments)), self.schema()), [])

    def test_the_check_notices(self):
        report = self.json(self.trace("run"))
        for spoil in (lambda r: r.pop("coverage"), lambda r: r["ranks"][0].update(steps="8"), lambda r: r.update(surprise=1),
                      lambda r: r["ranks"][0]["memory"].update(peak=None), lambda r: r["trace"].update(records=-1)):
            spoiled = json.loads(json.dumps(report))
            spoil(spoiled)
            self.assertNotEqual(errors(spoiled, self.schema()), [])

    def test_figures_add_up(self):
        report = self.json(self.trace("run", "--ranks", "3", "--records", "3000"))
        self.assertEqual([rank["rank"] for rank in report["ranks"]], [0, 1, 2])
        for name in ("allreduce", "barrier"):
            lines = [line for line in report["collective_classes"] if line["operation"] == name]
            self.assertEqual(sum(line["count"] for line in lines), report["collectives"][name]["count"])
            self.assertAlmostEqual(sum(line["seconds"] for line in lines), report["collectives"][name]["seconds"], places=6)
            self.assertTrue(all(line["matched"] == line["count"] for line in lines), lines)
        large = next(line for line in report["collective_classes"] if line["operation"] == "allreduce" and line["size_begin_bytes"] == 4 << 20)
        # Ranks come 40 us after each other: three of them wait 80, 40 and 0 us.
        self.assertAlmostEqual(large["late_seconds"] / large["count"], 40e-6, places=9)
        self.assertAlmostEqual(large["bus_bytes_per_second"], large["bytes"] / large["seconds"] * 4 / 3, delta=1e-6 * large["bus_bytes_per_second"])
        for rank in report["ranks"]:
            memory = rank["memory"]
            self.assertEqual(memory["peak"]["bytes"], sum(memory["peak"]["held"].get(kind, 0) for kind in ("param", "grad", "optim", "private", "other")))
            self.assertEqual(memory["peak"]["phase"], "backward")
            self.assertLessEqual(max(map(len, memory["bytes"].values())), 256)
            self.assertEqual(max(memory["bytes"]["param"]), rank["peak_bytes"]["param"])
            self.assertEqual(len(rank["step_times"]["seconds"]), rank["steps"] - 1)
            phases, steps = rank["phases"], rank["steps"]
            self.assertAlmostEqual(sum(phases.values()), rank["lived_seconds"], places=6)
            self.assertAlmostEqual(phases["backward"], 0.1 * steps, places=6)
            self.assertEqual((phases["import"], phases["start_up"], phases["saving"]), (3, 0.5, 0))
            self.assertGreaterEqual(phases["evaluation"], 0.25)  # which the rank was in last
        slowest = [call["seconds"] for call in report["slowest_calls"]]
        self.assertEqual(slowest, sorted(slowest, reverse=True))
        self.assertAlmostEqual(slowest[0], max(row["max_seconds"] for row in report["calls"].values() if "max_seconds" in row), places=8)

    def test_devices(self):
        report = self.json(self.trace("run", "--devices", "--records", "2000"))
        mib = 1 << 20
        for rank in report["ranks"]:
            self.assertEqual(rank["tiers"]["device"], {"param": 180 * mib, "grad": 0, "optim": 240 * mib, "slots": 48 * mib, "other": 40 * mib})
            self.assertEqual(rank["tiers"]["host"], {"param": 60 * mib, "grad": 240 * mib, "optim": 240 * mib, "slots": 0, "other": 60 * mib})
            self.assertEqual(set(rank["tiers"]["disk"].values()), {0})
            device, steps = rank["device"], rank["steps"]
            self.assertEqual((device["budget_bytes"], device["outside_bytes"], device["refused"]), (1 << 30, 12 * mib, 0))
            self.assertEqual({kind: value for kind, value in device["peak_bytes"].items() if kind != "other"},
                             {"param": 240 * mib, "grad": 240 * mib, "optim": 480 * mib, "slots": 48 * mib})
            self.assertGreaterEqual(device["peak_bytes"]["other"], 400 * mib)
            self.assertEqual(device["flips"], {"to_device": {"count": 0, "bytes": 0}, "to_host": {"count": 15, "bytes": 480 * mib}, "seconds": 0.061, "rescues": 2})
            self.assertEqual(device["overflow"], {"bytes": 40 * mib, "peak_bytes": 60 * mib, "segments": 2})
            slots = device["slots"]
            self.assertEqual([slots[name] for name in ("bytes", "uses", "hits", "in_time", "waits", "home_reads", "copied_bytes")],
                             [48 * mib, *((steps - 3) * per_step for per_step in (24, 23, 21, 2, 1, 60 * mib))])
            bytes, interval = rank["memory"]["bytes"], rank["memory"]["interval_seconds"]
            for end in ("to_device", "to_host"):
                copied, link = bytes["link_" + end], device["link"][end]
                self.assertEqual(copied, sorted(copied))
                self.assertEqual(copied[-1], link["bytes"])
                window = round(0.5 / interval)  # the timeline may be thinner than what the rate is made of
                fastest = max(later - earlier for earlier, later in zip(copied, copied[window:])) / (window * interval)
                self.assertAlmostEqual(link["max_bytes_per_second"] / fastest, 1, delta=0.3)
            peak = rank["memory"]["peak"]
            self.assertEqual(peak["bytes"], sum(peak["held"].get(kind, 0) for kind in ("param", "grad", "optim", "private", "other", "device_slots", "device_other")))
            self.assertNotIn("link_to_host", peak["held"])
        without = self.json(self.trace("host"))["ranks"][0]
        self.assertIsNone(without["device"])
        self.assertEqual(set(without["tiers"]["device"].values()), {0})

    def test_a_budget(self):
        report = self.json(self.trace("run", "--budget", "--records", "3000"))
        mib = 1 << 20
        node, = report["budgets"]["nodes"]
        self.assertEqual([node[name] for name in ("budget_bytes", "in_memory_peak_bytes", "on_disk_then_bytes", "on_disk_peak_bytes")],
                         [800 * mib, 660 * mib, 360 * mib, 480 * mib])
        self.assertEqual((max(node["in_memory"]), max(node["on_disk"]), len(node["in_memory"])), (660 * mib, 480 * mib, len(node["on_disk"])))
        for rank in report["ranks"]:
            memory = rank["memory"]
            self.assertEqual(list(memory["in_memory"]), ["optim"])
            self.assertEqual((max(memory["bytes"]["optim"]), max(memory["in_memory"]["optim"])), (240 * mib, 60 * mib))
            held = memory["peak"]["held"]
            self.assertEqual(memory["peak"]["bytes"], sum(held.get(kind, 0) for kind in ("param", "grad", "optim", "private", "other")))
            self.assertLessEqual(held["optim"], 60 * mib)
            self.assertNotIn("in_memory", held)
        self.assertIsNone(report["budgets"]["device"])
        self.assertEqual(self.json(self.trace("devices", "--devices", "--records", "2000"))["budgets"],
                         {"nodes": [], "device": {"budget_bytes": 1 << 30, "peak_bytes": (960 - 12) * mib}})
        for name in os.listdir(self.path("run")):
            if name.endswith(".trace"):
                os.unlink(self.path(f"run/{name}"))
        node, = self.json("run")["budgets"]["nodes"]
        self.assertEqual((node["in_memory_peak_bytes"], node["on_disk_then_bytes"], node["in_memory"]), (660 * mib, None, []))

    def test_groups_of_equal_numbers_are_told_apart(self):
        report = self.json(self.trace("run", "--ranks", "4", "--groups"))
        self.assertEqual([(group["label"], group["ranks"]) for group in report["groups"]],
                         [("0", [0, 1, 2, 3]), ("1: ranks 0-1", [0, 1]), ("1: ranks 2-3", [2, 3])])


class Text(ReportTest):
    def test_people_find_what_they_look_for(self):
        out = self.report(self.trace("run", "--ranks", "4", "--groups"))
        for part in ("ranks     4 on 1 node", "Where the time went (of the script's thread)", "Time (of the script's thread", "Memory over time (rank ", "the fullest: peak ", "backward)",
                     "bus bandwidth", "GB/s", "1: ranks 2-3", "Slowest calls", "longest", "Waits for other ranks", "Chunk events", "to device",
                     "61 functions hooked, 2 missed", "c10d::ProcessGroupGloo::allreduce"):
            self.assertIn(part, out)
        self.assertRegex(out, "optim .*[\u2581-\u2588]{8}")
        self.assertRegex(out, r"\n  rank +import +start-up +data +forward +backward +optimizer +evaluation +rest\n  0 +3\.00 s +\d+% ")
        self.assertLess(max(map(len, out.splitlines())), 180)

    def test_devices(self):
        out = self.report(self.trace("run", "--devices", "--records", "2000"))
        self.assertRegex(out, r"\nMemory by tier \(all ranks, at the end\)\n  tier +param +grad +optim +slots +other\n"
                              r"  device +360\.0 MiB +- +480\.0 MiB +96\.0 MiB +80\.0 MiB\n"
                              r"  host +120\.0 MiB +480\.0 MiB +480\.0 MiB +- +120\.0 MiB\n")
        devices = out.partition("\nDevices\n")[2].splitlines()
        self.assertEqual(devices[0], "  rank 0    homes: at most 1.0 GiB on the device; 15 moved to the host, 480.0 MiB, since 2 allocations had no room; took 61.0 ms")
        self.assertRegex(devices[1], r"^            slots: 48\.0 MiB; 96% of \d+ uses read a copy \(52% prefetched, 91% in time\), \d+ the home; ")
        self.assertRegex(devices[2], r"^            link: .* GiB to the device, up to .* GB/s; .* to the host, up to .*")
        self.assertEqual(devices[3], "            overflow: 40.0 MiB of the host's memory under the device's addresses, in 2 allocations; 60.0 MiB at most")
        self.assertEqual(devices[4], "            outside: 12.0 MiB of model data on the device has no home, and stays there")
        self.assertTrue(devices[5].startswith("  rank 1    homes: "))
        self.assertRegex(out, r"\n  device_optim +240\.0 MiB +- +480\.0 MiB")
        self.assertLess(max(map(len, out.splitlines())), 180)
        without = self.report(self.trace("host"))
        self.assertNotIn("Devices", without)
        self.assertNotIn("by tier", without)
        many = self.report(self.trace("many", "--devices", "--ranks", "10", "--records", "300"))
        self.assertIn("\n  and 2 more ranks (--format json has all)\n", many)

    def test_a_budget_is_in_the_headline(self):
        out = self.report(self.trace("run", "--budget", "--records", "3000"))
        self.assertIn("\n  memory    660.0 MiB of the budget of 800.0 MiB in memory at the peak, and 360.0 MiB on disk\n", out)
        self.assertRegex(out, r"\n  optim .*% +60\.0 MiB .*\n(.*\n)*  disk_optim .* 240\.0 MiB ")
        self.assertIn("\n  devices   948.0 MiB of the budget of 1.0 GiB for model data on the fullest device\n", self.report(self.trace("devices", "--devices")))
        self.assertNotIn("budget", self.report(self.trace("none")))

    def test_no_control_character_reaches_a_terminal(self):
        out = self.report(self.trace("run", "--name", "evil\x1b]0;owned\x07\x9b31m\r\n\x7f" + "\u009b"))
        self.assertIn("evil?]0;owned?", out)
        self.assertEqual([c for c in out if ord(c) < 32 and c != "\n" or 127 <= ord(c) < 160], [])


class Perfetto(ReportTest):
    def events(self, *arguments):
        out = self.report(self.trace("run", *arguments), "--format", "perfetto")
        return json.loads(out)["traceEvents"]

    def test_is_what_trace_viewers_take(self):
        events = self.events("--ranks", "3", "--records", "4000")
        by_phase = collections.defaultdict(list)
        for event in events:
            by_phase[event["ph"]].append(event)
            self.assertIn(event["ph"], "MXCistf")
            self.assertIsInstance(event["pid"], int)
            self.assertIsInstance(event["tid"], int)
            if event["ph"] != "M":
                self.assertGreaterEqual(event["ts"], 0)
        processes = {event["pid"]: event["args"]["name"] for event in by_phase["M"] if event["name"] == "process_name"}
        self.assertEqual([processes[rank].split(" (")[0] for rank in range(3)], ["rank 0", "rank 1", "rank 2"])
        tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in by_phase["M"] if event["name"] == "thread_name"}
        self.assertEqual({(event["pid"], event["tid"]) for event in by_phase["X"]} - set(tracks), set())
        for name in ("steps", "collectives, group 0"):
            self.assertEqual({pid for (pid, _), track in tracks.items() if track == name}, {0, 1, 2}, tracks)
        self.assertEqual({event["name"] for event in by_phase["C"]}, {f"memory: {kind}" for kind in ("param", "grad", "optim", "other", "pss")})
        self.assertTrue({"backward", "optimizer step", "allreduce", "the step of the others", "cudaLaunchKernelExC"} <= {event["name"] for event in by_phase["X"]})

    def test_counters_of_devices(self):
        counters = collections.defaultdict(list)
        for event in self.events("--devices", "--records", "2000"):
            if event["ph"] == "C" and event["pid"] == 0:
                counters[event["name"]].append(event["args"]["bytes"])
        for name in ("memory: device_param", "memory: device_slots", "memory: device_other", "copied: link_to_device", "copied: link_to_host"):
            self.assertIn(name, counters)
        self.assertEqual(set(counters["memory: device_grad"]), {240 << 20, 0})
        self.assertNotIn("memory: link_to_host", counters)

    def test_copies_of_devices_have_tracks_of_their_own(self):
        events = self.events("--devices", "--records", "3000")
        tracks = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == 0}
        copies = collections.defaultdict(list)
        for event in events:
            if event.get("cat") == "copy" and event["pid"] == 0:
                copies[tracks[event["tid"]]].append(event)
        names = "copy into a slot", "part of a step, to the device", "part of a step, to the host"
        self.assertEqual(sorted(copies), [f"copies, device 0: {name}" for name in names])
        for name, slices in copies.items():
            self.assertEqual({event["name"] for event in slices}, {name.partition(": ")[2]})
            self.assertEqual({event["args"]["bytes"] for event in slices}, {5 << 20})
            self.assertEqual({(event["dur"], event["args"]["queued_us"]) for event in slices}, {(400, 100)})

    def test_slices_of_a_track_nest(self):
        tracks = collections.defaultdict(list)
        for event in self.events("--records", "3000", "--pipeline"):
            if event["ph"] == "X" and event["dur"] > 0:
                tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"]))
        self.assertGreater(len(tracks), 4)
        for track, slices in tracks.items():
            open_until = []
            for begin, minus_duration, name in sorted(slices):
                while open_until and open_until[-1] <= begin + 1e-6:
                    open_until.pop()
                end = begin - minus_duration
                if open_until:
                    self.assertLessEqual(end, open_until[-1] + 1e-6, (track, name, begin))
                open_until.append(end)

    def test_every_collective_is_joined_over_all_ranks(self):
        events = self.events("--ranks", "4", "--groups", "--records", "2000")
        flows = collections.defaultdict(list)
        for event in events:
            if event["ph"] in "stf":
                flows[event["id"]].append(event)
        collectives = [event for event in events if event["ph"] == "X" and event["cat"] == "collective"]
        self.assertEqual(sum(map(len, flows.values())), len(collectives))
        for flow in flows.values():
            self.assertIn(len(flow), (2, 4))
            self.assertEqual(len({event["pid"] for event in flow}), len(flow))
            flow.sort(key=lambda event: (event["ts"], "stf".index(event["ph"])))
            self.assertEqual("".join(event["ph"] for event in flow), "s" + "t" * (len(flow) - 2) + "f")
            self.assertEqual(len({event["name"] for event in flow}), 1)


class Page(html.parser.HTMLParser):
    """What a page holds, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loads, self.texts, self.open = collections.Counter(), [], {}, None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        attributes = dict(attributes)
        self.loads += [value for name, value in attributes.items() if name in ("src", "href", "action", "data", "poster")]
        self.open = attributes.get("id", tag) if tag in ("script", "style") else None

    def handle_data(self, text):
        if self.open:
            self.texts[self.open] = self.texts.get(self.open, "") + text

    def handle_endtag(self, tag):
        self.open = None


class Html(ReportTest):
    def page(self, *arguments):
        return self.report(self.trace("run", *arguments), "--format", "html")

    def test_one_file_that_loads_nothing(self):
        text = self.page()
        page = Page(text)
        self.assertEqual(page.loads, [])
        self.assertEqual((page.tags["link"], page.tags["img"], page.tags["iframe"]), (0, 0, 0))
        self.assertIn("default-src 'none'", text)
        for word in ("@import", "url(", "fetch(", "XMLHttpRequest", "innerHTML", "document.write", "eval("):
            self.assertNotIn(word, text)
        data = json.loads(page.texts["data"])
        self.assertEqual([rank["rank"] for rank in data["ranks"]], [0, 1])

    def test_names_cannot_leave_their_place(self):
        page = Page(self.page("--name", HOSTILE))
        self.assertEqual(page.tags["script"], 3)
        self.assertEqual(page.tags["img"], 0)
        names = list(json.loads(page.texts["data"])["calls"])
        self.assertIn(HOSTILE.replace("\x1b", "?"), names)

    def test_stays_small(self):
        for name, arguments in (("long", ["--records", "200000"]), ("wide", ["--ranks", "256", "--records", "300", "--pipeline"])):
            self.trace(name, *arguments)
            self.assertLess(len(self.report(name, "--format", "html").encode()), 2 << 20)

    @unittest.skipUnless(BROWSER, "no browser (chromium) is installed: the page was not rendered")
    def test_a_browser_draws_a_budget_and_pauses(self):
        self.trace("run", "--ranks", "3", "--budget", "--pause", "--records", "20000")
        dom = self.drawn("run")
        self.assertIn('<div id="budget">', dom)
        self.assertIn("<b>690 MiB of the budget of 800 MiB at the peak</b>", dom)
        self.assertEqual(re.findall(r'<text class="limit"[^>]*>([^<]*)<', dom), ["budget 800 MiB"])
        self.assertRegex(dom, r'<rect class="pause"')
        top = [re.findall(r'<text[^>]*text-anchor="end"[^>]*>([\d.]+ [KMG]iB)<', chart)[-1] for chart in dom.split("<h3>rank ")[1:4]]
        self.assertEqual(len(set(top)), 1, "one scale")
        self.assertEqual((dom.count("<b>PSS</b>: "), dom.count("<b>other</b>: ")), (1, 1))

    @unittest.skipUnless(BROWSER, "no browser (chromium) is installed: the page was not rendered")
    def test_a_browser_draws_it_dark_as_the_system_is(self):
        self.trace("run", "--records", "300")
        self.assertIn('data-theme="light"', self.drawn("run").split(">", 2)[1])
        self.assertIn('data-theme="dark"', self.drawn("run", dark=True).split(">", 2)[1])

    @unittest.skipUnless(BROWSER, "no browser (chromium) is installed: the page was not rendered")
    def test_a_browser_draws_two_runs(self):
        self.trace("run", "--budget")
        self.trace("slow", "--slower", "50", "--name", HOSTILE)
        dom = self.drawn("run", "slow")
        self.assertIn("<h1>slow beside run</h1>", dom)
        for title in ("Figures", "Collectives", "Calls"):
            self.assertIn(f"<h2>{title}</h2>", dom)
        for row in ("step time, median (slowest rank)", "tensors at the peak (fullest rank)"):
            self.assertIn(f">{row}</td>", dom)

    def drawn(self, *runs, dark=False):
        """The page of the run, or of two, as a browser has made it."""
        self.castor("report", *runs, "--format", "html", "-o", "page.html")
        with tempfile.TemporaryDirectory() as home:
            drawn = subprocess.run(
                [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={home}",
                 "--virtual-time-budget=3000", f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", "file://" + self.path("page.html")],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, env={**os.environ, "HOME": home})
        dom = drawn.stdout
        self.assertRegex(dom, "<html[^>]* data-ready=\"true\"", drawn.stderr[-2000:])
        self.assertNotIn("data-error", dom.split(">", 2)[1])
        self.assertNotIn("owned'</title>", dom)
        self.assertEqual(Page(dom).tags["img"], 0)
        self.assertNotIn(">NaN<", dom)
        self.assertNotIn("NaN", "".join(re.findall(r' d="([^"]*)"', dom)))
        self.assertNotIn("undefined", re.sub(r"<script.*?</script>", "", dom, flags=re.S))
        return dom

    @unittest.skipUnless(BROWSER, "no browser (chromium) is installed: the page was not rendered")
    def test_a_browser_draws_it(self):
        for arguments in (["--ranks", "3"], ["--ranks", "1"], ["--ranks", "6", "--devices"], ["--devices", "--records", "1"], ["--pipeline"], ["--die"], ["--name", HOSTILE], ["--records", "1"], ["--ranks", "12"]):
            with self.subTest(arguments):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                ranks = int(arguments[1]) if arguments[0] == "--ranks" else 2
                self.trace("run", *arguments)
                dom = self.drawn("run")
                self.assertIn('id="outcome"', dom)
                self.assertIn('class="pill bad"' if "--die" in arguments else 'class="pill good"', dom)
                self.assertEqual('id="devices"' in dom, "--devices" in arguments)
                self.assertEqual('id="pipeline"' in dom, "--pipeline" in arguments)
                if "--pipeline" in arguments:
                    self.assertEqual((dom.count('<rect class="pass forward"'), dom.count('<rect class="pass backward"')), (16, 16))
                    self.assertEqual(re.findall(r'<text class="pass \w+"[^>]*>(\w+)<', dom), 2 * [f"{kind}{number}" for kind in "FB" for number in range(8)])
                if arguments[-2:] != ["--records", "1"]:
                    self.assertGreaterEqual(dom.count('data-kind="param"'), min(ranks, 6))
                    self.assertIn('class="peak-dot"', dom)
                    for title in ("Memory over time", "Steps", "Where the time went", "Collectives", "Calls", "Slowest calls", "Coverage"):
                        self.assertIn(f"<h2>{title}</h2>", dom)


class Compare(ReportTest):
    def setUp(self):
        super().setUp()
        self.trace("a", "--plugin", "none")
        self.trace("b", "--slower", "50")

    def test_ratios(self):
        report = self.json("a", "b")
        self.assertEqual((report["a"]["plugin"], report["b"]["plugin"]), ("none", "gemini"))
        launches = report["calls"]["cudaLaunchKernelExC"]
        self.assertEqual(launches["count"]["ratio"], 1)
        self.assertAlmostEqual(launches["seconds"]["ratio"], 1.5, places=2)
        self.assertGreater(report["figures"]["step_seconds"]["ratio"], 1.1)
        self.assertEqual(report["figures"]["tensor_peak_bytes"]["ratio"], 1)
        self.assertAlmostEqual(report["collectives"]["allreduce"]["seconds"]["ratio"], 1.5, delta=0.05)

    def test_text(self):
        out = self.report("a", "b")
        for part in ("b beside a", "A  " + self.path("a") + ": plugin none", "step time, median", "tensors at the peak", "allreduce", "cudaLaunchKernelExC", "1.50"):
            self.assertIn(part, out)

    def test_what_only_one_run_has(self):
        self.trace("c", "--name", "onlyHere")
        report = self.json("a", "c")
        self.assertEqual(report["calls"]["onlyHere"]["count"]["a"], None)
        self.assertIsNone(report["calls"]["onlyHere"]["count"]["ratio"])
        self.assertIn("cublasGemmEx", report["calls"])

    def test_formats_for_one_run_only(self):
        code, out, err = self.castor("report", "a", "b", "--format", "perfetto")
        self.assertEqual((code, out, len(err)), (2, "", 1))
        self.assertIn("--format perfetto shows one run", err[0])
        code, _, err = self.castor("report", "a", "absent")
        self.assertEqual((code, len(err)), (2, 1))


class Files(ReportTest):
    def test_the_file_is_private_and_whole(self):
        self.trace("run")
        old = os.umask(0)
        self.addCleanup(os.umask, old)
        for name in ("text", "json", "perfetto", "html"):
            self.report("run", "--format", name, "-o", "out." + name)
            self.assertEqual(stat.S_IMODE(os.stat(self.path("out." + name)).st_mode), 0o600)
            self.assertEqual(self.text("out." + name), self.report("run", "--format", name))

    def test_a_truncated_segment_is_reported_as_far_as_it_goes(self):
        self.trace("run")
        segments = sorted(name for name in os.listdir(self.path("run")) if name.endswith(".trace"))
        os.truncate(self.path(f"run/{segments[-1]}"), 1000)
        with open(self.path(f"run/{segments[0]}"), "r+b") as file:
            file.write(b"not a trace")
        for name in ("text", "json", "perfetto", "html"):
            code, out, err = self.castor("report", "run", "--format", name)
            self.assertEqual((code, len(err)), (1, 2), err)
            self.assertIn("is truncated: 11 of its", " ".join(err))
            self.assertIn("is not a trace segment of castor", " ".join(err))
            self.assertTrue(out)
        self.assertEqual(len(json.loads(self.castor("report", "run", "--format", "json")[1])["problems"]), 2)

    def damage(self, folder, random):
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "r+b") as file:
                content = bytearray(file.read())
                end = random.choice((256, 2600, len(content)))
                for _ in range(random.choice((0, 1, 20, 300))):
                    at = random.randrange(12, min(end, len(content) - 8))
                    if random.random() < 0.3:
                        content[at:at + 8] = random.choice((0, 2**64 - 1, 2**63, 2**32)).to_bytes(8, "little")
                    else:
                        content[at] = random.randrange(256)
                file.seek(0)
                file.write(content)
                if random.random() < 0.1:
                    file.truncate(random.randrange(len(content)))

    def test_a_file_that_shrinks_while_it_is_read(self):
        """What is cut off is missing, and nothing else happens: files are read, not mapped."""
        self.trace("run", "--ranks", "2", "--records", "8000")
        paths = [self.path(f"run/{name}") for name in sorted(os.listdir(self.path("run")))]
        contents = {}
        for path in paths:
            with open(path, "rb") as file:
                contents[path] = file.read()
        seed = random.randrange(2**32)
        source, ended = random.Random(seed), threading.Event()

        def shrink_and_restore():
            while not ended.is_set():
                path = source.choice(paths)
                os.truncate(path, source.randrange(len(contents[path])))
                ended.wait(source.random() / 200)
                with open(path, "r+b") as file:
                    file.write(contents[path])

        thread = threading.Thread(target=shrink_and_restore)
        thread.start()
        try:
            for i in range(16):
                name = ("text", "json", "perfetto", "html")[i % 4]
                code, out, err = self.castor("report", "run", "--format", name)
                self.assertIn(code, (0, 1, 2), f"seed {seed}: {err}")
                self.assertTrue(out if code < 2 else err)
                if code < 2 and name in ("json", "perfetto"):
                    json.loads(out)
        finally:
            ended.set()
            thread.join()
        for path in paths:
            os.truncate(path, len(contents[path]))
        self.report("run")  # all of it is there again

    def test_hostile_names_of_directories(self):
        name = "a</title><script>alert(1)</script>\x1b]0;x\x07\x9b2J\u009b31m".replace("/", "\u2215")
        self.trace(name)
        for form in ("text", "json", "html", "perfetto"):
            out = self.report(name, "--format", form)
            self.assertEqual([c for c in out if unicodedata.category(c) == "Cc" and c != "\n"], [], form)
        self.assertIn("Castor report: a<\u2215title>", self.report(name))
        page = Page(self.report(name, "--format", "html"))
        self.assertEqual(page.tags["script"], 3)
        self.trace("other")
        self.assertNotIn("\x1b", self.report(name, "other") + self.report(name, "other", "--format", "json"))
        os.mkdir(self.path(name + "empty"))
        for missing in (name + "absent", name + "empty"):
            code, out, err = self.castor("report", missing)
            self.assertEqual((code, out, len(err)), (2, "", 1))
            self.assertEqual([c for c in err[0] if unicodedata.category(c) == "Cc"], [])

    def test_damage_is_never_fatal(self):
        seed = random.randrange(2**32)
        source = random.Random(seed)
        self.trace("run", "--ranks", "3", "--groups", "--records", "600")
        for _ in range(12):
            with self.subTest(seed=seed):
                shutil.copytree(self.path("run"), self.path("damaged"))
                self.damage(self.path("damaged"), source)
                for name in ("text", "json", "perfetto", "html"):
                    code, out, err = self.castor("report", "damaged", "--format", name)
                    self.assertIn(code, (0, 1, 2))
                    self.assertTrue(out if code < 2 else err)
                    if code < 2 and name in ("json", "perfetto"):
                        json.loads(out)
                shutil.rmtree(self.path("damaged"))

    def test_counters_alone_are_enough(self):
        self.trace("run")
        for name in os.listdir(self.path("run")):
            if name.endswith(".trace"):
                os.unlink(self.path(f"run/{name}"))
        report = self.json("run")
        self.assertIsNone(report["ranks"][0]["memory"])
        self.assertEqual(report["collective_classes"], [])
        self.assertGreater(report["collectives"]["allreduce"]["count"], 0)
        self.assertIn("allreduce", self.report("run"))
        self.assertIn("Not sampled", self.report("run", "--format", "html"))
        json.loads(self.report("run", "--format", "perfetto"))


def setUpModule():
    if not os.access(MAKE_TRACE, os.X_OK):
        raise AssertionError(f"{MAKE_TRACE} is missing; run make tools first")
