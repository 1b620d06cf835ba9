"""Colossal-AI's examples, applications and tests, beside the names and the results that CASTOR_COMPAT=1 gives them.

    originals.py DIR [NAME]...         DIR: a clone's work tree; NAMEs select test files whose path contains one of them
    originals.py DIR --markdown FILE   writes the results, and earlier ones, into docs/foreign.md

The names that scripts of `examples` and `applications` import are imported, each by itself. The tests' files run by pytest with their own
colossalai.testing, on CPUs over gloo. Results are kept in build/foreign/originals.json. The last
line is `N passed, N failed`: a file that does not pass fails, unless OUT says why."""
import argparse
import ast
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TITLE = "Colossal-AI's own scripts and tests"
FOLDERS = "test_tensor", "test_device", "test_cluster", "test_checkpoint_io", "test_optimizer", "test_booster"
SECONDS = 200

_MODELS = "left out here: its collection of models loads files from Hugging Face"
_WHOLE = "uses the optimizer inside a plugin by itself; a message names the plugin"
OUT = {  # a part of a file's path: why it need not pass
    "test_mixed_precision": _MODELS, "test_ddp_plugin": _MODELS, "test_torch_ddp_plugin": _MODELS, "test_torch_fsdp_plugin": _MODELS,
    "test_low_level_zero_plugin": _MODELS, "test_gemini_checkpoint_io": _MODELS, "test_gemini_torch_compability": _MODELS,
    "test_plugins_huggingface": _MODELS, "test_adam_optim": _MODELS, "test_nvme": _MODELS,
    "test_gemini_plugin": "asks colossalai.fx whether tensors can be meta ones: torch.fx has that", "test_3d_plugin": "the same",
    "test_accelerator": "asks for a device of type cuda",
    "test_general_checkpoint_io": "makes a second scheduler of the optimizer that it compares with; here this one begins at the first rate again",
    "test_torch_ddp_checkpoint_io": "a file named .safetensors in torch.save's format; a message says what to pass",
    "test_torch_fsdp_checkpoint_io": "takes state_dict() for a copy; here, as in PyTorch, it refers to the model's tensors",
    "test_hybrid_parallel_plugin_checkpoint_io": "takes random states apart inside of layers (Randomizer)", "test_dist_adafactor": "the same",
    "test_dist_came": "calls the gather inside of layers", "test_dist_galore": "galore is a library of its own; a message names it",
    "test_low_level_zero_checkpoint_io": _WHOLE, "test_dist_lamb": _WHOLE,
    "test_safetensors_async_io": "writes files by parts of a saving; a message names save_model(use_async=True)",
    "test_device_mesh_manager": "meshes by names; a message names DeviceMesh",
    "test_adam_kernel": "calls kernels by themselves", "test_mix_gather": "calls a simulation inside of a communication",
    "test_padded_tensor": "nothing is padded; a message says what is done instead",
    "test_shape_consistency.py": "looks into a cache by its keys; its other test passes",
    "test_dtensor_sharding_spec": "costs of changes of a specification; get_total_comm_cost() has those of conversions",
    "test_layout_converter": "expects that a conversion costs as much backward as forward; here each step's collective counts with its own tensor's size. What it converts is right",
    "test_dtensor/test_comm_spec": "makes a CommSpec of groups, where Castor takes a specification",
}
RESOLVE = """
import json, sys
found = []
for name in json.load(sys.stdin):
    module, _, what = name.partition(":")
    try:
        exec(f"from {module} import {what}" if what and what != "*" else f"import {module}", {})
        found.append(name)
    except Exception:
        pass
print(json.dumps(found))
"""


def imported(path):
    """The names that a file imports from colossalai, as "module:name"."""
    with open(path, errors="replace") as file:
        try:
            nodes = list(ast.walk(ast.parse(file.read())))
        except SyntaxError:
            return set()
    mine = {f"{one.module}:{alias.name}" for one in nodes if isinstance(one, ast.ImportFrom) and not one.level and one.module for alias in one.names}
    mine |= {alias.name for one in nodes if isinstance(one, ast.Import) for alias in one.names}
    return {name for name in mine if re.match(r"colossalai\b", name)}


def files_of(folder, pattern=r".*\.py"):
    return sorted(os.path.join(of, name) for of, _, names in os.walk(folder) for name in names if re.fullmatch(pattern, name))


class Originals:
    def __init__(self, args, python):
        self.args, self.python = args, python
        self.work = os.path.join(args.build, "foreign")
        self.path = os.path.join(self.work, "originals")
        os.makedirs(self.path, exist_ok=True)
        link = os.path.join(self.path, "tests")  # without the repository's own colossalai beside it
        if os.path.lexists(link):
            os.unlink(link)
        os.symlink(os.path.abspath(os.path.join(args.repository, "tests")), link)

    def run(self, command, **more):
        castor = [self.args.castor, "run", "--plugin", "none", "--log-dir", os.path.join(self.work, "originals-log"), "--set", "CASTOR_COMPAT=1", "--"]
        environment = dict(os.environ, ORIGINALS_TESTING=os.path.abspath(os.path.join(self.args.repository, "colossalai", "testing")), OMP_NUM_THREADS="1",
                           PYTHONPATH=os.pathsep.join((os.path.join(HERE, "originals_site"), self.path)), HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1")
        return subprocess.run([*castor, self.python, *command], cwd=self.path, env=environment, capture_output=True, text=True, timeout=SECONDS, **more)

    def names(self, folder):
        """[names that resolve, names, files all of whose names resolve, files]"""
        files = {path: names for path in files_of(os.path.join(self.args.repository, folder)) if (names := imported(path))}
        every = sorted(set().union(*files.values()))
        found = set(json.loads(self.run(["-c", RESOLVE], input=json.dumps(every)).stdout.splitlines()[-1]))
        return [len(found), len(every), sum(names <= found for names in files.values()), len(files)]

    def test(self, file):
        """("passed", "failed", "skipped" or "not collected", the last line of an error)."""
        try:
            done = self.run(["-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", os.path.join("tests", file)])
        except subprocess.TimeoutExpired:
            return "failed", f"not ended after {SECONDS} s"
        errors = re.findall(r"^E +(.*\S)", done.stdout, re.MULTILINE)
        kind = {0: "passed", 1: "failed"}.get(done.returncode, "not collected")
        return "skipped" if kind == "passed" and not re.search(r"\d passed", done.stdout) else kind, errors[-1] if errors and done.returncode else ""


def reason(file):
    return next((why for part, why in OUT.items() if part in file), None)


def section(stored):
    """Of docs/foreign.md, below TITLE."""
    lines = ["By `tests/foreign/originals.py`, with a clone of hpcaitech/ColossalAI, under `CASTOR_COMPAT=1` on CPUs. Names that do not resolve are an",
             "ImportError that says what to use: mostly inference, kernels, `fx`, `auto_parallel` and the old layers and contexts of `legacy`.", "",
             "| scripts | names that resolve | files all of whose names do |", "| --- | --- | --- |"]
    lines += [f"| `{folder}` | {a} of {b} | {c} of {d} |" for folder, (a, b, c, d) in stored["names"].items()]
    tests = stored["tests"]
    out = {file: reason(file) for file, (kind, _) in tests.items() if kind in ("failed", "not collected") and reason(file)}
    kinds = {kind: sum(one == kind for one, _ in tests.values()) for kind in ("passed", "skipped")}
    lines += ["", f"Of {len(tests)} files of tests in {', '.join(f'`{one}`' for one in FOLDERS)}, {kinds['passed']} pass, {kinds['skipped']} are skipped by themselves, and "
              f"{len(out)} are out of scope or cannot run here:", "", "| file | result | why |", "| --- | --- | --- |"]
    lines += [f"| {file} | {kind if file not in out else 'left out' if out[file].startswith('left out') else 'out of scope'} | "
              f"{out[file].removeprefix('left out here: ') if file in out else '' if kind in ('passed', 'skipped') else error} |" for file, (kind, error) in sorted(tests.items())]
    return "\n".join(lines)


def main():
    import run
    import sections

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository")
    parser.add_argument("names", nargs="*", default=[""])
    run.add_arguments(parser)
    parser.add_argument("--environment", help="an interpreter that has PyTorch and requirements.txt, instead of one that is made")
    args = parser.parse_args()
    suite = Originals(args, args.environment or run.environment(os.path.abspath(args.python), os.path.join(args.build, "foreign", "env")))
    stored, place = {"names": {}, "tests": {}}, os.path.join(suite.work, "originals.json")
    if os.path.exists(place):
        with open(place) as file:
            stored = json.load(file)
    for folder in ("examples", "applications"):
        stored["names"][folder] = suite.names(folder)
        print(folder, *stored["names"][folder], flush=True)
    passed = failed = 0
    tests = os.path.join(args.repository, "tests")
    for path in (path for folder in FOLDERS for path in files_of(os.path.join(tests, folder), r"test_.*\.py")):
        file = os.path.relpath(path, tests)
        if not any(name in file for name in args.names or [""]):
            continue
        stored["tests"][file] = kind, error = suite.test(file)
        good = kind in ("passed", "skipped") or reason(file) is not None
        passed, failed = passed + good, failed + (not good)
        print(f"{file}: {kind} {error}", flush=True)
        with open(place, "w") as written:
            json.dump(stored, written, indent=1)
    if args.markdown:
        sections.replace(args.markdown, TITLE, section(stored))
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
