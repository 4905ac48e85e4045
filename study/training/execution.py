"""Execution of a run: device, threads, kernels, and the meaning of precision `auto`.

Threads and the number of devices change a run's last bits, and its dropout, which each device draws; a GPU draws other masks
than a CPU; `auto` changes its precision. The record stores them. A resumed run keeps its precision and, on a CPU, its number of
threads.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import shutil
import socket
import sysconfig
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field

from study.base.durable_files import is_there
from study.base.errors import InputError
from study.base.machine import forget_peak_resident, peak_resident_bytes, processor_line, processor_name
from study.base.schema import NonNegative, Positive, Strict
from study.config.resources import AskedKernels, Kernels, ResourceCount
from study.config.run_config import RunConfig
from study.counting.memory import AskedPrecision, Device, Precision
from study.model.layers import multiplies_in_bf16
from study.model.stored_weights import ON_A_CPU
from study.store.ownership import hang_seconds
from study.store.records import Environment

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


class Execution(Strict):
    """How a run executes: the kind and number of devices (DDP) over all nodes, and the CPU threads per device.

    `resolve_kernels` resolves `kernels` of `auto`. `validations` are spread evenly over the steps, the last at the end; by
    default their cost decides. Checkpoints follow `checkpoint_seconds`, by default `Checkpointer`. A run without a step for
    `hang_seconds` ends as HUNG. At most `sharing` runs share a device.
    """

    device: Device = "cpu"
    devices: ResourceCount = 1
    threads: ResourceCount = 1
    kernels: AskedKernels = "auto"
    validations: ResourceCount | None = None
    checkpoint_seconds: NonNegative | None = None
    hang_seconds: Positive = Field(default_factory=hang_seconds)
    nodes: ResourceCount = 1
    sharing: ResourceCount = 1

    def of(self, config: RunConfig) -> Execution:
        """Return the execution of a run; one of no steps runs on one device with torch's own kernels."""
        return self if config.steps else self.model_copy(update={"kernels": "eager", "devices": 1, "nodes": 1})

    def check(self, config: RunConfig) -> None:
        """Raise InputError if this machine cannot run it, or a batch does not divide evenly, or a device has no validation."""
        if config.batch_sequences % self.devices:
            place, batch = "recipe.batch_tokens", config.batch_sequences
            raise InputError.at(place, f"{batch} sequences a batch cannot be divided evenly among {self.devices} devices")
        if self.devices > 1 and config.recipe.pads and (config.recipe.detects_replaced or config.recipe.teacher_run):
            unequal = "leaves devices unequal numbers of tokens, by which objective rtd and teachers weigh no loss"
            raise InputError.at("recipe.packing", f"doc_sentences {unequal}; use one device, or full_sentences")
        if config.data.validation_sequences < self.devices:
            place, few = "data.validation_sequences", f"are fewer than the {self.devices} devices of a run"
            raise InputError.at(place, f"{config.data.validation_sequences} {few}, each of which validates some; set more")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError.at("device", "torch finds no CUDA device here; use cpu")
        if self.device == "cuda" and config.recipe.weights == "int8":
            raise InputError.at("device", f"recipe.weights int8 {ON_A_CPU}")
        if self.kernels == "onednn" and (self.device != "cpu" or resolve_precision(config.recipe.precision, "cpu") != "fp32"):
            raise InputError.at("kernels", "onednn is for fp32 on a CPU; set recipe.precision to fp32, or use eager or auto")
        if self.kernels == "onednn" and not built_with("mkldnn"):
            raise InputError.at("kernels", "this torch was built without oneDNN; use eager or auto")
        if self.kernels == "graphed" and (self.device == "cpu" or self.devices > 1):
            raise InputError.at("kernels", "graphed runs on a single CUDA device; use compiled or eager")
        check_compiler(self.kernels, self.device)


def check_compiler(kernels: str, device: Device, place: str = "kernels") -> None:
    """Raise InputError, at `place`, if torch.compile lacks its tools."""
    if kernels in ("compiled", "graphed") and not can_compile(device):
        missing = "a C compiler and Python's headers (Debian: gcc, python3-dev)"
        raise InputError.at(place, f"{kernels} needs {missing}; install them, or use eager")


def can_compile(device: Device) -> bool:
    """Whether torch.compile has its tools: a compiler, and Python's headers for Triton."""
    compiler = os.environ.get("CC") or (
        shutil.which("gcc") or shutil.which("clang") if device == "cuda" else shutil.which("g++")
    )
    return bool(compiler) and is_there(Path(sysconfig.get_path("include")) / "Python.h")


def resolve_kernels(execution: Execution, precision: Precision) -> Kernels:
    """Resolve `auto`: on CUDA, fused if torch.compile can run, and graphed on a single device.

    On a CPU, where fusing gains nothing, oneDNN in fp32 if MKL is slow, else eager.
    """
    if execution.kernels != "auto":
        return execution.kernels
    if execution.device == "cpu":
        return "onednn" if precision == "fp32" and mkl_is_slow() else "eager"
    if not can_compile("cuda"):
        return "eager"
    return "graphed" if execution.devices == 1 else "compiled"


def mkl_is_slow() -> bool:
    """Whether torch uses MKL for fp32 products on another maker's processor, and has oneDNN."""
    vendor = processor_line("vendor_id")
    return vendor not in (None, "GenuineIntel") and built_with("mkl") and built_with("mkldnn")


def built_with(backend: Literal["mkl", "mkldnn"]) -> bool:
    """Whether torch was built with Intel's MKL, or with oneDNN (mkldnn)."""
    return bool(getattr(torch.backends, backend).is_available())


def resolve_precision(requested: AskedPrecision, device: Device) -> Precision:
    """Resolve `auto`: bf16 if the device multiplies in it natively, else fp32."""
    if requested == "auto":
        return "bf16" if multiplies_in_bf16(device) else "fp32"
    return requested


LIGHTNING_PRECISION: dict[Precision, Literal["32-true", "bf16-mixed"]] = {"fp32": "32-true", "bf16": "bf16-mixed"}
"""Lightning's names of the precisions."""

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
"""Dense rates from NVIDIA's datasheets (SXM unless named, no sparsity, TF32 off), by words of the device's name."""


def peak_flops_per_second(execution: Execution, precision: Precision) -> float | None:
    """Return the datasheet rate of all devices of a run, None if unknown (CPUs and MIG slices of a GPU)."""
    if execution.device == "cpu":
        return None
    words = torch.cuda.get_device_name().replace("-", " ").split()
    known = [name for name in PEAK_FLOPS_PER_SECOND if set(name.split()) <= set(words)]
    if not known or "MIG" in words:
        return None
    return PEAK_FLOPS_PER_SECOND[max(known, key=len)][precision] * execution.devices


def peak_memory_bytes(execution: Execution) -> int:
    """Return this process's peak memory since `forget_peak_memory`, on its GPU if it uses one."""
    if execution.device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return peak_resident_bytes()


def forget_peak_memory(execution: Execution) -> None:
    """Let the peak begin anew for another job of this process."""
    if execution.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        forget_peak_resident()


def environment(execution: Execution, precision: Precision) -> Environment:
    """Return the environment of this process."""
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
    """Return the processor's name, with the instruction set that torch uses."""
    return f"{processor_name()} ({torch.backends.cpu.get_cpu_capability()})"


def keep_freed_memory() -> bool:
    """Make glibc's malloc keep freed memory in this process; False if the C library has no `mallopt`.

    By default each step maps its logits and gradients anew: at 2x128 with 30,522 word pieces, 73,000 page faults take a quarter
    of the step. Results are identical to the bit. Source: mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))


def release_models(device: Device) -> None:
    """Free the models of finished trainings; a Trainer and its module form a reference cycle."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
