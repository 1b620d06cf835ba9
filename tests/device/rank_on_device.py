"""Runs a script of tests/scripts, which is written for CPUs, on a CUDA device (on_device.py says how): as a rank on a device of its own, over NCCL,
or alone.

    torchrun --nproc-per-node 2 rank_on_device.py SCRIPT [ARG]...
    rank_on_device.py SCRIPT [ARG]...

Scripts of frameworks, which move models and batches themselves, are told by the environment that there are devices (record.ON_DEVICE).
"""
import os
import runpy
import sys

import torch
import torch.distributed as dist

import on_device

OF_FRAMEWORKS = "trainer.py", "trainer_ddp.py", "accelerate_ddp.py", "fabric_ddp.py", "lightning_ddp.py"


def over_nccl():
    """Process groups have NCCL for tensors on devices, and gloo for the host's."""
    for name in ("init_process_group", "new_group"):
        stock = getattr(dist, name)

        def made(*args, _stock=stock, _first=name == "init_process_group", **kwargs):
            if _first and args and args[0] == "gloo":
                args = ("cpu:gloo,cuda:nccl", *args[1:])
            if kwargs.get("backend") == "gloo":
                kwargs["backend"] = "cpu:gloo,cuda:nccl"
            return _stock(*args, **kwargs)

        setattr(dist, name, made)


def main():
    script, *sys.argv[1:] = sys.argv[1:]
    sys.argv[0] = script
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    if os.path.basename(script) in OF_FRAMEWORKS:
        os.environ["RANK_ON_DEVICE"] = "1"
        if not {"LOCAL_RANK", "CASTOR_RANK"} & os.environ.keys():
            os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # with more a Trainer takes all of them, by threads
        runpy.run_path(script, run_name="__main__")
        return
    if "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        over_nccl()
    on_device.place_models()
    with on_device.Meeting():
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
