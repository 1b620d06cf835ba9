"""Compiled models: for a device Inductor makes kernels of Triton, which nothing can run here. Its C++ for CPUs computes on the device's memory instead, in
the buffers that its wrapper takes from the device's allocator."""
import torch

from .tensors import announce


def call(device, kernel, *arguments):
    """What a compiled graph does in place of a launch."""
    announce([one for one in arguments if isinstance(one, torch.Tensor)], device)
    torch.cuda.current_stream(device).synchronize()
    kernel(*arguments)


def _registered():
    """Once Inductor is there, which takes a while to import."""
    import torch.utils._triton
    from torch._inductor import config
    from torch._inductor.codegen import common, cpp, wrapper
    from torch._inductor.virtualized import V

    config.cuda_backend = "cpp"  # a part of the key in Inductor's caches
    config.loop_ordering_after_fusion = config.triton.mix_order_reduction = False  # loops that only kernels of Triton have
    common.init_backend_registration()
    common.register_backend_for_device("cuda", cpp.CppScheduling, wrapper.PythonWrapperCodegen)
    torch.utils._triton.triton_hash_with_backend = lambda: "SIMULATED"  # it asks Triton's driver
    launch = wrapper.PythonWrapperCodegen._generate_kernel_call_helper

    def called(self, kernel_name, call_args, *, device=None, triton=True, **more):
        device = device or V.graph.get_current_device_or_throw()
        if triton or device.type != "cuda":
            return launch(self, kernel_name, call_args, device=device, triton=triton, **more)
        self.add_import_once("from simulated_numbers import compiled as simulated")
        return self.writeline(f"simulated.call({device.index}, {kernel_name}, {', '.join(call_args)})")

    wrapper.PythonWrapperCodegen._generate_kernel_call_helper = called


def on():
    """Whenever PyTorch is about to compile by Inductor."""
    owner = torch._TorchCompileInductorWrapper
    compile_graph = owner.__call__
    done = []

    def called(self, *arguments):
        if not done:
            _registered()
            done.append(True)
        return compile_graph(self, *arguments)

    owner.__call__ = called
