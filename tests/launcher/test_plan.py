"""castor plan: its command line and errors, its two formats, and the commands that it prints."""
import html.parser
import json
import os
import shlex
import subprocess
import sys

from command import BINARY, LIMIT_S, CommandTest

MAKE_TRACE = os.path.join(os.path.dirname(BINARY), "make-trace")
GPT2 = ["--model", "12x768x12x50257", "--batch", "64K"]
TERMS = ["compute", "optimizer", "sums", "tensor", "link", "disk", "idle"]


class Plan(CommandTest):
    def plan(self, *arguments, status=0):
        code, out, err = self.castor("plan", *arguments)
        self.assertEqual((code, err), (status, []))
        return out

    def json(self, *arguments, status=0):
        return json.loads(self.plan(*arguments, "--format", "json", status=status))

    def refused(self, *arguments, parts):
        code, out, err = self.castor("plan", *arguments)
        self.assertEqual((code, out, len(err)), (2, "", 1), err)
        for part in ("castor: plan: ", *parts):
            self.assertIn(part, err[0])

    def test_bad_input_gets_one_line(self):
        for arguments, parts in (
                ([], ["a model is missing", "castor plan DIR", "-- COMMAND"]), (["logs", *GPT2], ["takes one model"]),
                (["--model", "12x768x12x50257"], ["--batch is missing", "--batch 64K"]),
                (["--model", "12x768", "--batch", "1K"], ["LAYERSxHIDDENxHEADSxVOCAB"]),
                ([*GPT2, "--memory", "40G"], ["--memory", "--devices N"]), ([*GPT2, "--devices", "x"], ["--devices x", "0 to 1024"]),
                ([*GPT2, "--nodes", "0"], ["--nodes 0", "from 1"]), ([*GPT2, "--nodes", "1.."], ["--nodes 1.."]),
                ([*GPT2, "--host", "12Q"], ["--host 12Q", "40G"]),
                ([*GPT2, "--speed", "fast"], ["--speed fast", "200T"]), ([*GPT2, "--format", "htm"], ["--format htm", "did you mean html?"]),
                ([*GPT2, "--nodes", "8192", "--devices", "64"], ["65536 devices"]), (["--model", "2x8x2x64", "--batch", "100"], ["fewer tokens", "1024"]),
                (["--model", "96x12288x96x50257", "--batch", "100000T"], ["too many tokens"]), ([*GPT2, "--"], ["a command is missing"]),
                (["one", "two"], ["one log directory", "two"]), ([*GPT2, "--modle", "x"], ["did you mean --model?"])):
            with self.subTest(arguments):
                self.refused(*arguments, parts=parts)

    def test_what_is_no_run_is_refused(self):
        code, out, err = self.castor("plan", "nowhere")
        self.assertEqual((code, out), (2, ""), err)
        os.mkdir(self.path("empty"))
        code, out, err = self.castor("plan", "empty")
        self.assertEqual((code, out), (2, ""), err)

    def test_a_command_that_does_not_train_is_said_so(self):
        for command, line in (([sys.executable, "-c", "print(1)"], "castor: plan: the command ended with status 0 before an optimizer had stepped twice"),
                              ([sys.executable, "-c", "raise SystemExit(7)"], "castor: plan: the command ended with status 7 before"),
                              (["no-such-command"], "castor: no-such-command: command not found")):
            code, out, err = self.castor("plan", "--", *command)
            self.assertEqual((code, out), (2, ""), err)
            self.assertTrue(err[-1].startswith(line), err)

    def test_a_command_is_ended_when_it_has_made_its_steps(self):
        """Its steps have no times here, so nothing is planned; tests/live has a real one."""
        command = self.python(f"""
import os, sys, time
sys.path[:0] = [{os.path.dirname(os.path.abspath(__file__))!r}, {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))!r}]
from fake_job import Process
job = Process(os.environ["CASTOR_LOG_DIR"], 0)
job.steps(8)
job.write()
print("not in the plan", flush=True)
time.sleep(600)
""")
        code, out, err = self.castor("plan", "--", *command)
        self.assertEqual((code, out), (2, ""), err)
        self.assertRegex("\n".join(err), r"recorded in castor-logs/plan-\d{8}-\d{6}\n.*fewer than two steps")

    def test_plans_are_in_order_and_all_but_the_first_say_why_not(self):
        for machine in ([], ["--devices", "8", "--memory", "40G"], ["--devices", "2", "--memory", "4G", "--host", "64G"], ["--nodes", "4", "--cores", "16"],
                        ["--nodes", "1250", "--devices", "8", "--memory", "80G"]):
            with self.subTest(machine):
                made = self.json("--model", "12x768x12x50257", "--batch", "64M", *machine, status=0 if not machine or machine[1] != "2" else 1)
                plans = made["plans"]
                self.assertEqual(made["plan_version"], 1)
                self.assertGreaterEqual(made["tried"], len(plans))
                self.assertEqual([plan["why_not"] is None for plan in plans], [plans[0]["fits"]] + [False] * (len(plans) - 1))
                for plan in plans:
                    self.assertEqual(list(plan["seconds"]), TERMS)
                    self.assertAlmostEqual(sum(plan["seconds"].values()), plan["step_seconds"], delta=1e-6 * plan["step_seconds"])
                    self.assertEqual(plan["command"] is None, plan["plugin"] == "HybridParallelPlugin")
                    self.assertEqual(plan["tp"] * plan["pp"] * plan["dp"], plan["ranks_per_node"] * made["machine"]["nodes"])
                ranks = [(not plan["fits"], plan["plugin"] == "HybridParallelPlugin", plan["step_seconds"]) for plan in plans]
                self.assertTrue(all(a[:2] < b[:2] or a[2] <= b[2] * 1.0011 for a, b in zip(ranks, ranks[1:])), ranks)

    def test_castor_run_takes_every_command_that_is_printed(self):
        for machine in ([], ["--devices", "2", "--memory", "20G"], ["--devices", "1", "--memory", "6G"], ["--host", "12G"]):
            for plan in self.json("--model", "12x768x12x50257", "--batch", "8K", *machine)["plans"]:
                if plan["command"] is None or "torchrun" in plan["command"]:
                    continue
                words = shlex.split(plan["command"])
                self.assertEqual(words[0], "castor")
                at = words.index("--")
                self.assertEqual(words[at + 1:], ["python", "train.py"])
                # Only what castor run itself judges: its command ends at once. Ranks would be started; their number is judged alone.
                ranks = [] if "--nproc" not in words else ["--set", "CASTOR_FORK=off"]
                code, _, err = self.castor(*words[1:at], *ranks, "--log-dir", "logs", "--", "true")
                self.assertEqual(code, 0, (plan["command"], err))

    def test_text_names_the_best_and_its_command(self):
        out = self.plan(*GPT2, "--devices", "8", "--memory", "40G")
        self.assertIn("124,439,808 parameters", out)
        self.assertRegex(out, r"best     castor run --plugin \w+ (--set \S+ )*(--nproc 8 -- python train.py|-- torchrun --nproc-per-node 8 train_ddp.py)")
        self.assertIn("why not", out)
        out = self.plan(*GPT2, "--devices", "8", "--memory", "2G", "--host", "1G", status=1)
        self.assertIn("nothing that castor runs fits", out)
        self.assertRegex(out, r"does not fit: a (device|node's memory) needs")

    def test_the_page_is_whole_and_escaped(self):
        page = self.plan(*GPT2, "--devices", "8", "--format", "html")
        seen = []

        class Parser(html.parser.HTMLParser):
            def handle_starttag(self, tag, attributes):
                if tag != "meta":
                    seen.append(tag)

            def handle_endtag(self, tag):
                last = len(seen) - 1 - seen[::-1].index(tag)
                if tag not in ("tr", "td", "th"):
                    del seen[last:]

        Parser().feed(page)
        self.assertEqual(seen, [])
        rows = len(self.json(*GPT2, "--devices", "8")["plans"])
        self.assertEqual((page.count("<tr>"), page.count("<td>"), page.count("<script")), (rows + 1, 12 * rows, 0))
        self.assertIn("default-src 'none'", page)

    def test_a_run_under_a_budget_is_refused(self):
        done = subprocess.run([MAKE_TRACE, self.path("run"), "--ranks", "2", "--budget"], stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.refused("run", parts=["run: ", "moved chunks under a budget", "CASTOR_MEMORY_BUDGET=0"])
