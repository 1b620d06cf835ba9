"""What the rows of DDP scripts show under the plugin fsdp, where that is not what they show under the plugins with the node store."""

from expect import like

OWN = "the checksum of the gradients"  # which differ between ranks, that step parts of one model
HOOKED = "register_post_accumulate_grad_hook"

REFUSED = {
    "compile_ddp.py": {"in_the_middle": OWN},
    "frozen_ddp.py": {"used_without_synchronization_only": OWN},
    "gradients_ddp.py": {
        "hooks_of_the_script": HOOKED,
        "hooks_after_the_wrapper": HOOKED,
        "two_backwards_of_one_graph": OWN,
        "double_backward": "second derivative",
    },
    "storages_ddp.py": {
        "other_values_on_each_rank": "the checksum of the parameters",
        "part_beside_the_whole": "share memory without being one",
        "states_loaded_on_rank_0": "the checksum of the optimizer's states",
    },
    "stepping_ddp.py": {"inside_backward": HOOKED},
    "sync_ddp.py": {"local_steps": OWN, "local_then_synchronized": OWN, "wrapped_but_not_called": OWN},
    "weights_ddp.py": {"tied_by_data": "share memory without being one"},
}
LEFT_OUT = {("compile_ddp.py", "whole_step")}  # PyTorch's compiler cannot trace fully_shard's backward in it, and raises an error
DIFFERS = {
    ("gradients_ddp.py", "stale_graph"): "expected 'RuntimeError', found 'Error'",  # its subclass: autograd.grad() is refused
}


def expected(script, title, expect):
    refused = REFUSED.get(script, {}).get(title)
    expect = like(expect, says="", says_not="", differs=DIFFERS.get((script, title), expect.differs))  # what is said is of the store
    return like(expect, refused=refused, differs="", aside="") if refused else expect
