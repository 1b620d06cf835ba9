"""The runs of run.py: which program, on which simulated devices."""
import dataclasses
import os
import sys

import runner
import simulated


@dataclasses.dataclass
class Run:
    name: str
    program: str  # a file in this folder, or a program that is built from programs/
    settings: dict = dataclasses.field(default_factory=dict)  # of simulated.environment
    variables: dict = dataclasses.field(default_factory=dict)
    tests: int = 1  # at least so many must report
    ranks: int = 0  # started once per rank
    arguments: tuple = ()
    castor: bool = False  # under `castor run`
    seconds: int = 120  # it ends by then

    def command(self, build):
        program = os.path.join(simulated.FOLDER, self.program)
        if "." not in self.program:  # built from programs/
            return [os.path.join(build, "bin", "sim", self.program)]
        command = [sys.executable, program, *(argument.format(build=build) for argument in self.arguments)]
        if self.ranks:
            command[1:1] = [os.path.join(simulated.FOLDER, "ranks.py"), str(self.ranks)]
        if self.castor:
            logs = os.path.join(build, "test-logs", f"sim-{self.name.replace(' ', '-')}")
            command[:0] = [os.path.join(build, "bin", "castor"), "run", "--log-dir", logs, "--"]
        return command

    def environment(self, build):
        env = simulated.environment(build=build, **self.settings)
        env.update({name: value.format(build=build) for name, value in self.variables.items()})
        return env

    def judge(self, lines, status):
        """What is wrong with the run as a whole, or None."""
        if status == 0 and any(line.startswith("left out: ") for line in lines):
            return None
        reported = sum(line.startswith(("ok ", "FAIL ")) for line in lines)
        if reported < self.tests:
            return f"{reported} tests reported, {self.tests} expected; exit status {status}"
        failed = any(line.startswith("FAIL ") for line in lines)
        return None if failed or status == 0 else f"exit status {status}"


def all_runs():
    two = {"devices": 2, "memory": "8G"}
    return [
        Run("symbols", "symbols.py", arguments=("{build}/lib/castor-simulation",), tests=2),
        Run("driver memory", "driver_memory", {"devices": 4, "memory": "1G", "host_memory": "128M"}, {"CUDA_VISIBLE_DEVICES": "3,1"},
              tests=14),
        Run("driver streams", "driver_streams", variables={"SIM_KERNELS": "{build}/bin/sim/libbodies.so"}, tests=9),
        Run("runtime", "runtime", {"devices": 2, "memory": "1G"}, {"SIM_KERNELS": "{build}/bin/sim/libbodies.so"}, tests=5),
        Run("nccl in C", "nccl_ranks", {"devices": 2}, tests=4),
        Run("torch", "inside_torch.py", two, tests=15),
        Run("simulate", "simulates.py", tests=5),
        Run("rehearsals", "rehearsals.py", arguments=("{build}",), tests=3),
        *([Run("long rehearsals", "rehearsals.py", arguments=("{build}", "all"), tests=15, seconds=1200)] if runner.LENGTH == "all" else []),
        Run("link", "inside_link.py", {**two, "link_bandwidth": "1G"}, tests=4),
        Run("numbers", "inside_numbers.py", {**two, "numbers": True}, {"CUBLAS_WORKSPACE_CONFIG": ":4096:1"}, tests=19),
        Run("kernels", "inside_kernels.py", {**two, "numbers": True}, {"SIM_KERNELS": "{build}/bin/sim/libcastor_bodies.so"}, tests=12,
              castor=True),
        Run("torch with expandable segments", "inside_torch.py", two,
              {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, tests=15),
        Run("torch under castor run", "inside_torch.py", two, tests=15, castor=True),
        Run("faults", "inside_faults.py", {"check": "fault", "fail": "cudaHostAlloc:2:2"},
              {"SIM_LAUNCHES": "{build}/test-logs/sim-launches"}, tests=3),
        Run("nccl", "inside_nccl.py", two, tests=11, ranks=2),
        Run("nccl under castor run", "inside_nccl.py", two, tests=11, ranks=2, castor=True),
    ]
