"""Where and how a run executes: device, threads, and the precision that `auto` means there.

Devices and threads change the last bits of a run, `auto` its precision; the record says which were used. A resumed run
keeps its precision.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import shutil
import socket
import sysconfig
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch

from study.base.durable_files import is_there
from study.base.errors import InputError
from study.base.machine import peak_resident_bytes, processor_line, processor_name
from study.config.resources import AskedKernels, Kernels
from study.config.run_config import RunConfig
from study.counting.memory import AskedPrecision, Device, Precision
from study.model.autocast import multiplies_in_bf16
from study.store.ownership import hang_seconds
from study.store.records import Environment

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


@dataclass(frozen=True)
class Execution:
    """How one run executes: the kind and number of devices (DDP) over all nodes, and the CPU threads of each.

    `kernels` of `auto` follow `resolve_kernels`. `validations` are spread evenly over the steps, the last at the end; by
    default their cost decides. Checkpoints are taken every `checkpoint_seconds`, or as `Checkpointer` chooses. A run that takes
    no step for `hang_seconds` ends as HUNG. At most `sharing` runs share a device.
    """

    device: Device = "cpu"
    devices: int = 1
    threads: int = 1
    kernels: AskedKernels = "auto"
    validations: int | None = None
    checkpoint_seconds: float | None = None
    hang_seconds: float = field(default_factory=hang_seconds)
    nodes: int = 1
    sharing: int = 1

    def of(self, config: RunConfig) -> Execution:
        """The execution of a run; one of no steps is only validated, on one device and by torch's own kernels."""
        return self if config.steps else replace(self, kernels="eager", devices=1, nodes=1)

    def check(self, config: RunConfig) -> None:
        """Raise InputError if this machine lacks the device or the kernels, or a batch cannot be divided evenly."""
        if config.batch_sequences % self.devices:
            place, batch = "recipe.batch_tokens", config.batch_sequences
            raise InputError.at(place, f"{batch} sequences a batch cannot be shared out over {self.devices} devices evenly")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError.at("device", "cuda was asked for, but torch sees no CUDA device here; use cpu")
        if self.kernels == "onednn" and (self.device != "cpu" or resolve_precision(config.recipe.precision, "cpu") != "fp32"):
            raise InputError.at("kernels", "onednn is for fp32 on a CPU; set recipe.precision to fp32, or use eager or auto")
        if self.kernels == "onednn" and not built_with("mkldnn"):
            raise InputError.at("kernels", "this torch was built without oneDNN; use eager or auto")
        if self.kernels == "graphed" and (self.device == "cpu" or self.devices > 1):
            raise InputError.at("kernels", "graphed runs on a single CUDA device; use compiled or eager")
        check_compiler(self.kernels, self.device)


def check_compiler(kernels: str, device: Device, place: str = "kernels") -> None:
    """Raise InputError, at `place`, if torch.compile must build kernels and lacks the tools here."""
    if kernels in ("compiled", "graphed") and not can_compile(device):
        missing = "a C compiler and Python's headers (Debian: gcc, python3-dev)"
        raise InputError.at(place, f"{kernels} needs {missing}; install them, or use eager")


def can_compile(device: Device) -> bool:
    """Whether torch.compile finds what it builds with here: a compiler, and Python's headers for Triton."""
    compiler = os.environ.get("CC") or (
        shutil.which("gcc") or shutil.which("clang") if device == "cuda" else shutil.which("g++")
    )
    return bool(compiler) and is_there(Path(sysconfig.get_path("include")) / "Python.h")


def resolve_kernels(execution: Execution, precision: Precision) -> Kernels:
    """The kernels of `auto`: on CUDA fused if torch.compile can run, and graphed on a single device.

    On a CPU, where fusing gains nothing, oneDNN's in fp32 if MKL is slow, else eager.
    """
    if execution.kernels != "auto":
        return execution.kernels
    if execution.device == "cpu":
        return "onednn" if precision == "fp32" and mkl_is_slow() else "eager"
    if not can_compile("cuda"):
        return "eager"
    return "graphed" if execution.devices == 1 else "compiled"


def mkl_is_slow() -> bool:
    """Whether torch's fp32 products go through MKL on a processor that is known not to be Intel's, and oneDNN is there."""
    vendor = processor_line("vendor_id")
    return vendor not in (None, "GenuineIntel") and built_with("mkl") and built_with("mkldnn")


def built_with(backend: Literal["mkl", "mkldnn"]) -> bool:
    """Whether torch was built with Intel's MKL, or with oneDNN (mkldnn)."""
    return bool(getattr(torch.backends, backend).is_available())


def resolve_precision(requested: AskedPrecision, device: Device) -> Precision:
    """The precision that `auto` means: bf16 where the device has instructions to multiply in it, else fp32."""
    if requested == "auto":
        return "bf16" if multiplies_in_bf16(device) else "fp32"
    return requested


LIGHTNING_PRECISION: dict[Precision, Literal["32-true", "bf16-mixed"]] = {"fp32": "32-true", "bf16": "bf16-mixed"}
"""What Lightning calls the precisions."""

PEAK_FLOPS_PER_SECOND = {
    "A100": {"fp32": 19.5e12, "bf16": 312e12},
    "H100": {"fp32": 67e12, "bf16": 989e12},
    "H100 NVL": {"fp32": 60e12, "bf16": 835e12},
    "H100 PCIe": {"fp32": 51e12, "bf16": 756e12},
    "H200": {"fp32": 67e12, "bf16": 989e12},
    "H200 NVL": {"fp32": 60e12, "bf16": 835e12},
    "L4": {"fp32": 30e12, "bf16": 121e12},
    "L40S": {"fp32": 91.6e12, "bf16": 362e12},
    "V100": {"fp32": 15.7e12, "bf16": 15.7e12},
}
"""Dense rates of NVIDIA's datasheets (SXM where no form is named, no sparsity, TF32 off), by words of the device's name."""


def peak_flops_per_second(execution: Execution, precision: Precision) -> float | None:
    """The datasheet's rate of all devices of a run together, None where it is not known (CPUs and slices of a GPU by MIG)."""
    if execution.device == "cpu":
        return None
    words = torch.cuda.get_device_name().replace("-", " ").split()
    known = [name for name in PEAK_FLOPS_PER_SECOND if set(name.split()) <= set(words)]
    if not known or "MIG" in words:
        return None
    return PEAK_FLOPS_PER_SECOND[max(known, key=len)][precision] * execution.devices


def peak_memory_bytes(execution: Execution) -> int:
    """The most memory that this process has had: of its GPU where it is on one, of the machine else."""
    if execution.device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return peak_resident_bytes()


def environment(execution: Execution, precision: Precision) -> Environment:
    """What this process runs on, as the record keeps it."""
    return Environment(
        hostname=socket.gethostname(),
        device=torch.cuda.get_device_name() if execution.device == "cuda" else "cpu",
        processor=processor(),
        devices=execution.devices,
        nodes=execution.nodes,
        sharing=execution.sharing,
        threads=execution.threads,
        precision=precision,
        kernels=resolve_kernels(execution, precision),
        python=platform.python_version(),
        torch=torch.__version__,
        lightning=version("pytorch-lightning"),
        study=version("scaling-study"),
    )


def processor() -> str:
    """The processor's name, with the instruction set that torch uses on it."""
    return f"{processor_name()} ({torch.backends.cpu.get_cpu_capability()})"


def keep_freed_memory() -> bool:
    """Make glibc's malloc keep freed memory in this process; False if the C library has no `mallopt`.

    By default each step maps its logits and gradients anew: at 2x128 with 30,522 word pieces that costs 73,000 page faults, a
    quarter of the step's time. The numbers are the same to the bit. Source: mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))


def release_models(device: Device) -> None:
    """Free the models of finished trainings; a Trainer and its module hold each other until Python collects them."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
