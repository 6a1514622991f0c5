"""In every Python process, `train.device=auto` is a pretended accelerator without float64, as Apple's Metal is.

Its tensors lie in the CPU's memory, and the CPU's kernels compute them, as torch's device for other people's backends. An
operation on a float64 tensor of this device raises an error, as does a result in float64 or a copy to such a tensor.
"""

import ctypes
import dataclasses
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretended"
CPU, EXTENSION = 1, 12  # DLPack's numbers of devices
aten = torch.ops.aten


class DLTensor(ctypes.Structure):
    """The start of DLPack's description of a tensor."""

    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32))


get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def with_device(tensor: torch.Tensor, device: int) -> torch.Tensor:
    """The same memory as a tensor of another device."""
    capsule = torch._C._to_dlpack(tensor.detach())
    DLTensor.from_address(get_pointer(capsule, b"dltensor")).device_type = device
    return torch._C._from_dlpack(capsule)


def is_here(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def refuse_float64(op: object, *tensors: torch.Tensor) -> None:
    if any(tensor.dtype is torch.float64 for tensor in tensors):
        raise TypeError(f"{op}: the pretended device does not support float64")


def compute(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of any operation, by the CPU's kernels."""
    pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # tensors on the CPU, and the same tensors here

    def to_cpu(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == NAME:
            return torch.device("cpu")
        if not is_here(value):
            return value
        refuse_float64(op, value)
        tensor = with_device(value, CPU)
        pairs[id(tensor)] = tensor, value
        return tensor

    args = tuple(  # torch gives numbers in place of the tensors that it has made of them
        torch.tensor(value) if argument.type.kind() == "TensorType" and isinstance(value, int | float) else value
        for argument, value in zip(op._schema.arguments, args, strict=False)
    )
    cpu_args, cpu_kwargs = pytree.tree_map(to_cpu, (args, kwargs))
    for name in (argument.name for argument in op._schema.arguments if argument.is_out):
        if not kwargs[name].numel():  # memory that came through DLPack cannot grow
            cpu_kwargs[name] = torch.empty(0, dtype=kwargs[name].dtype)
            pairs[id(cpu_kwargs[name])] = cpu_kwargs[name], kwargs[name]
    is_view = any(value.alias_info and not value.alias_info.is_write for value in op._schema.returns)
    leaves = op is aten._to_copy.default and torch.device(kwargs.get("device") or NAME).type == "cpu"

    def from_cpu(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or leaves:
            return value
        refuse_float64(op, value)
        _, own = pairs.get(id(value), (None, None))
        if own is None:
            # a view of a tensor from outside of inference mode shares its version
            with torch.inference_mode(args[0].is_inference() if is_view else torch.is_inference_mode_enabled()):
                return with_device(value, EXTENSION)
        if own.shape != value.shape:
            own.data = with_device(value, EXTENSION)
        return own

    return pytree.tree_map(from_cpu, op(*cpu_args, **cpu_kwargs))


def copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy between the CPU, which converts, and this device."""
    refuse_float64("copy", *filter(is_here, (source, target)))
    cpu_source, cpu_target = (with_device(tensor, CPU) if is_here(tensor) else tensor for tensor in (source, target))
    cpu_target.copy_(cpu_source)
    return target


def with_autocast(op: Any) -> Any:
    """An operation that autocast computes in bfloat16."""

    def to_bfloat16(value: Any) -> Any:
        return value.bfloat16() if is_here(value) and value.dtype is torch.float32 else value

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(NAME, enabled=False):
            args, kwargs = pytree.tree_map(to_bfloat16, (args, kwargs))
            return op(*args, **kwargs)

    return call


class DeviceModule:
    """`torch.pretended`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def _is_in_bad_fork(self) -> bool:
        return False


_setup_privateuseone_for_python_backend(NAME, DeviceModule())
fallbacks, operations = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
fallbacks.fallback(compute, "PrivateUse1")
fallbacks.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
operations.impl("_copy_from", copy, "PrivateUse1")
for operation in ("linear", "matmul", "scaled_dot_product_attention"):
    operations.impl(operation, with_autocast(getattr(aten, operation)), "AutocastPrivateUse1")


def choose_pretended_device() -> None:
    """`auto` chooses the pretended device, and a run that was started on it can be resumed."""
    from partwise.compute import runtime

    choose = runtime.choose_runtime

    def choose_runtime(train: runtime.RuntimeSettings) -> runtime.Runtime:
        chosen = choose(train)
        return dataclasses.replace(chosen, device=NAME, kernels=False) if train.device == "auto" else chosen

    runtime.choose_runtime = choose_runtime
    from partwise.train.config import TrainConfig

    from_dict = TrainConfig.from_dict

    def from_settings(values: Any, prefix: str = "") -> TrainConfig:
        return from_dict({**values, "device": "auto"} if values.get("device") == NAME else values, prefix)

    TrainConfig.from_dict = from_settings  # type: ignore[method-assign]


choose_pretended_device()
