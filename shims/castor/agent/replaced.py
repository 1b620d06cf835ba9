"""The table of the functions of PyTorch that Castor replaces. Only patching.py replaces them.

A row: the dotted name; the names of the parameters that Castor's function relies on ("...": others may follow; <kind>: Python
cannot list them); why no public hook of PyTorch is enough. `also`: other modules that hold the same function. `may_lack`: some
supported version has no such function, or a library is not installed. `traced`: where no step needs Castor, torch.compile sees
PyTorch's function (common/traced.py). A star stands for each class, or function, that the module defines itself."""
import typing

# Classes of torch.optim whose update of a parameter depends on that parameter alone.
SEPARABLE = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "Muon", "NAdam", "RAdam", "RMSprop",
    "Rprop", "SGD",
)

# Functions of torch.nn.functional, which the modules of torch.nn call.
LOSSES = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy", "ctc_loss",
    "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
    "soft_margin_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
)


class Row(typing.NamedTuple):
    name: str
    parameters: str
    why: str
    also: tuple = ()
    may_lack: bool = False
    traced: bool = False


_DDP = "torch.nn.parallel.DistributedDataParallel."
_ITERATOR = "torch.utils.data.dataloader._BaseDataLoaderIter."
_OPTIMIZER = "torch.optim.Optimizer."
_SCALER = "torch.amp.GradScaler."
_ITERATES = "a DataLoader has no hook where an iteration begins or gives a batch"
_STEPS_ASIDE = "the reducer of PyTorch must be there before the script changes what it does; there is no hook before"

_ADDRESS = "other code has the address of this memory, which must not move then; nothing tells"
_NO_GPU = "scripts for a GPU call it without asking whether there is one; under CASTOR_COMPAT it means the CPU where there is none"
# Of torch.cuda; agent/without_gpu.py has what each does without a GPU.
OF_CUDA = (
    "current_device", "set_device", "synchronize", "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
    "set_per_process_memory_fraction", "current_stream", "default_stream", "set_stream", "stream", "get_rng_state", "get_rng_state_all",
    "set_rng_state", "set_rng_state_all", "Event", "Stream",
)

_ADAM = "params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, ..."
_SGD = "params, grads, momentum_buffer_list, ..."

ROWS = (
    # process
    Row("importlib._bootstrap._find_and_load", "name, import_", "Python has no hook where an import ends"),
    Row("torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler.SubprocessHandler._popen", "self, args, env",
        "torchrun has no hook where it starts a rank", may_lack=True),
    Row("torch.multiprocessing.spawn._wrap", "...", "it catches the exceptions of spawned processes; there is no hook before they exit",
        may_lack=True),
    Row("torch.autograd.graph._engine_run_backward", "t_outputs, *args, **kwargs",
        "there is no hook around a whole backward pass that can scale its roots, and hears of one that raises", also=("torch.autograd",)),
    Row(_ITERATOR + "__init__", "self, loader", _ITERATES),
    Row(_ITERATOR + "_reset", "self, loader, first_iter", _ITERATES),
    Row(_ITERATOR + "__next__", "self", _ITERATES),
    # nodes
    Row("torch.distributed.distributed_c10d._new_process_group_helper", "...",
        "gloo's contexts must be watched while a group is made, and its name and ranks known before", may_lack=True),
    # precision
    Row("torch.nn.Module._save_to_state_dict", "self, destination, prefix, keep_vars",
        "hooks run after those of the script, which may have renamed the keys, and are not told keep_vars"),
    Row("torch.nn.Module._load_from_state_dict", "self, state_dict, prefix, local_metadata, ...",
        "the hook after loading is not given the values"),
    Row(_OPTIMIZER + "_process_value_according_to_param_policy", "param, value, ...",
        "loaded states are rounded to the type of the parameter here; hooks see them before or after that"),
    Row("torch.optim.Adagrad.__init__", "self, ...", "Adagrad makes its states when it is built; optimizers have no hook for that"),
    Row(_DDP + "_sync_buffers", "self", "there is no hook after the broadcast of buffers"),
    Row(_SCALER + "__init__", "self, ...", "a GradScaler has no hook where it is made"),
    Row(_OPTIMIZER + "load_state_dict", "self, state_dict", "hooks of state dicts are for one optimizer; there is none for all"),
    *(Row(f"torch.nn.functional.{name}", "...", "functions have no hooks, and losses are computed in float", may_lack=True) for name in LOSSES),
    Row("transformers.modeling_utils.PreTrainedModel.save_pretrained", "self, ...",
        "the saved configuration must name the type of the weights beside it", may_lack=True),
    Row("transformers.modeling_utils.PreTrainedModel.dtype", "<property>",
        "the saved configuration must name the type of the weights beside it", may_lack=True),
    # backward
    Row("torch.nn.functional._no_grad_embedding_renorm_", "weight, ...", "a forward that changes its parameter has no hook for that",
        may_lack=True),
    Row("torch.distributed.Reducer", "<pybind11_type>", "a communication hook comes after gradients were copied into buckets on each rank"),
    Row("torch.distributed.Logger", "<pybind11_type>", "its constructor wants a reducer of PyTorch's"),
    Row("torch.nn.parallel.distributed._verify_param_shape_across_processes", "process_group, tensors, ...",
        "the rank whose model is right is not told that others differ", may_lack=True),
    Row("torch.nn.parallel.distributed._sync_module_states",
        "module, process_group, broadcast_bucket_size, src, params_and_buffers_to_ignore, ...",
        "parameters that all ranks made alike need no broadcast, which would give each rank its own copy; there is no hook before it",
        may_lack=True),
    Row(_DDP + "_ddp_init_helper", "self, parameters, expect_sparse_gradient, ...",
        "what is registered meanwhile belongs to this module; there is no hook where a module is wrapped"),
    Row(_DDP + "_run_ddp_forward", "self, *inputs, **kwargs", "hooks of modules cannot compute anything in the place of a module", may_lack=True),
    Row(_DDP + "register_comm_hook", "self, ...", _STEPS_ASIDE, may_lack=True),
    Row(_DDP + "_register_builtin_comm_hook", "self, ...", _STEPS_ASIDE, may_lack=True),
    Row(_DDP + "join_hook", "self, ...", _STEPS_ASIDE, may_lack=True),
    Row(_DDP + "_update_process_group", "self, ...", _STEPS_ASIDE, may_lack=True),
    Row(_OPTIMIZER + "add_param_group", "self, param_group", "optimizers have no hook where they get parameters"),
    Row(_SCALER + "_maybe_opt_step", "self, optimizer, optimizer_state, ...", "a step that the scaler leaves out calls no hook"),
    Row(_SCALER + "update", "self, new_scale", "the scale must stay through the micro-steps of a step; a scaler has no hooks"),
    Row("torch.optim.lr_scheduler.*.step", "self, ...", "schedulers have no hooks, and one's step is left out with the optimizer's"),
    Row("torch.optim.lr_scheduler.LRScheduler.__init_subclass__", "<builtin_function_or_method>",
        "a script's own schedulers step likewise; a base class is told of them here only"),
    # device
    Row("torch.nn.Module._apply", "self, fn, recurse", "modules have no hook where they move their tensors"),
    Row("torch.load", "f, map_location, pickle_module, ...", "what it loads to a device must be born in a home; it has no hooks", also=("torch.serialization",)),
    Row("torch.nn.Parameter.__deepcopy__", "self, memo", "copies of models have no hook"),
    Row("torch.cuda.CUDAGraph.capture_begin", "self, pool, ...", "what a graph may hold by its address must not move; it has no hook"),
    Row("torch.Tensor.__deepcopy__", "self, memo", "copies of models have no hook"),
    Row("torch.Tensor.__dlpack__", "self, ...", _ADDRESS),
    Row("torch.utils.dlpack.to_dlpack", "...", _ADDRESS, also=("torch",)),
    Row("torch.Tensor.__cuda_array_interface__", "...", _ADDRESS),
    Row("torch.Tensor.data_ptr", "...", _ADDRESS),
    Row("torch.UntypedStorage.data_ptr", "...", _ADDRESS),
    Row("torch.UntypedStorage._share_cuda_", "...", _ADDRESS),
    Row("torch.Tensor.data", "...", "what a script writes there is not counted by _version, and one rank may write alone; nothing tells that it has got it"),
    Row("torch.nn.Parameter.grad", "...", "another rank may have the sum, which is read when the script looks at it; nothing tells that it does"),
    *(Row(f"torch.optim.{name}._init_group", "self, group, ...", "the states of a step that torch.compile traces are made there; it has no hooks", may_lack=True)
      for name in SEPARABLE),
    Row("torch.cuda.empty_cache", "...", "the memory of a pool goes back when the pool ends, not when the script asks for it", also=("torch.cuda.memory",)),
    Row("torch.Tensor.record_stream", "<method_descriptor>", "the allocator forgets what it is told of streams while a pool is open"),
    Row("torch.cuda.use_mem_pool", "pool, device", "a pool that a script opens counts as well; nothing tells whether one is open", also=("torch.cuda.memory",)),
    # optim
    Row(_OPTIMIZER + "profile_hook_step", "func",
        "hooks around a step are not called when it raises, cannot leave it out, and stand inside the steps that wrappers nest"),
    Row(_OPTIMIZER + "_patch_step_function", "self", "the class of an optimizer is known here before its step is wrapped"),
    *(Row(f"torch.optim.{name}.step", "self, closure",
          "a hook before it cannot show the update other gradients than the closure, which the step calls",
          may_lack=True, traced=True) for name in SEPARABLE),
    *(Row(f"torch.optim.adam._{form}_adam", _ADAM, "the arithmetic of a step has no hook", may_lack=True, traced=True)
      for form in ("single_tensor", "multi_tensor", "fused")),
    *(Row(f"torch.optim.sgd._{form}_sgd", _SGD, "the arithmetic of a step has no hook", may_lack=True, traced=True)
      for form in ("single_tensor", "multi_tensor", "fused")),
    Row("torch.nn.utils.clip_grad.clip_grad_norm_", "parameters, max_norm, norm_type, error_if_nonfinite, foreach",
        "functions have no hooks, and owners clip for all ranks", also=("torch.nn.utils",), traced=True),
    Row("torch.nn.utils.clip_grad.clip_grad_value_", "parameters, clip_value, foreach",
        "functions have no hooks, and owners clip for all ranks", also=("torch.nn.utils",), traced=True),
    Row(_SCALER + "_unscale_grads_", "self, optimizer, inv_scale, found_inf, allow_fp16", "a scaler has no hooks, and owners unscale for all ranks"),
    Row(_OPTIMIZER + "zero_grad", "self, set_to_none", "clearing gradients has no hook", traced=True),
    Row("torch.nn.Module.zero_grad", "self, set_to_none", "clearing gradients has no hook", traced=True),
    Row("torch.utils.swap_tensors", "t1, t2", "it refuses tensors with weak references, and has no hook before"),
    Row(_OPTIMIZER + "state_dict", "self", "hooks of state dicts are for one optimizer; there is none for all"),
    # nproc
    Row("torch.nn.modules.lazy.LazyModuleMixin._infer_parameters", "self, module, args, kwargs",
        "what an optimizer has is registered before its first use; a lazy module removes its own hook when its parameters get data"),
    Row(_OPTIMIZER + "__init__", "self, params, defaults", "optimizers have no hook where they are built"),
    Row("torch.nn.functional.batch_norm", "input, running_mean, running_var, weight, bias, training, momentum, eps",
        "functions have no hooks, and statistics are those of the whole batch"),
    Row("torch.nn.functional.instance_norm", "input, running_mean, running_var, ...",
        "functions have no hooks, and its batch norm is one of each sample"),
    Row("torch.save", "obj, f, ...", "one rank writes for all, or a thread of the library does; there is no hook before a file is opened",
        also=("torch.serialization",)),
    Row("safetensors.torch.serialize_file", "tensor_dict, filename, ...", "one rank writes for all; there is no hook before a file is opened",
        may_lack=True),
    Row("torch.utils.checkpoint.checkpoint", "function, *args, ...", "what is computed once more must be told of the rows that it computes"),
    Row("torch.nn.Module.__call__", "self, *args, **kwargs", "hooks of all modules see no keyword arguments, and cannot leave out a call"),
    Row("torch.nn.Module.train", "self, mode", "modules have no hook where their mode changes"),
    Row("torch.Tensor.register_hook", "self, hook", "nothing tells that somebody asks for the gradients of a tensor"),
    Row("torch.Tensor.retain_grad", "<method_descriptor>", "the same"),
    Row("torch.Tensor.requires_grad_", "<method_descriptor>", "tensors have no hook where they begin to require gradients"),
    Row("torch.distributed.distributed_c10d.init_process_group", "backend, init_method, timeout, world_size, ...",
        "a script with ranks of its own must be refused before it waits for them", also=("torch.distributed",)),
    Row("torch.utils.data.dataloader.DataLoader.__iter__", "self", _ITERATES),
    Row("torch.utils.data._utils.fetch._MapDatasetFetcher.fetch", "self, possibly_batched_index",
        "only here it is known which samples a batch is made of, in workers as well"),
    Row("torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers", "self",
        "in the fork that audits the workers are another process's"),
    Row("numpy.random.*", "...", "NumPy's global generator has no hooks", may_lack=True),
    # without a GPU
    *(Row(f"torch.cuda.{name}", "...", _NO_GPU, may_lack=True) for name in OF_CUDA),
    Row("torch.cuda.device.__init__", "self, device", _NO_GPU),
    Row("torch.cuda.device.__enter__", "self", _NO_GPU),
    Row("torch.cuda.device.__exit__", "self, type, value, traceback", _NO_GPU),
    Row("torch.Tensor.cuda", "<method_descriptor>", _NO_GPU),
    Row("torch.Tensor.pin_memory", "<method_descriptor>", _NO_GPU),
    Row("torch.autocast.__init__", "self, device_type, dtype, enabled, cache_enabled", _NO_GPU),
    Row("torch.distributed.distributed_c10d.new_group", "ranks, timeout, backend, ...", "nccl means gloo where there is no GPU", also=("torch.distributed",)),
    Row("torch.distributed.device_mesh.DeviceMesh.__init__", "self, device_type, ...", _NO_GPU),
    Row(_DDP + "__init__", "self, module, device_ids, output_device, ...", "the devices of a module mean the CPU where there is no GPU"),
    # lazy
    Row("torch.nn.Module.__setstate__", "self, state", "copies and pickles put parameters in place past the hook for their registration"),
)
