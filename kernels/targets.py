"""The accelerators that programs are compiled for, which need not be here.

Numbers are per device as JAX counts devices: a chip, or half a chip on TPU 7x. Peaks are dense
bfloat16. Sources: Google Cloud's pages on TPU v4, v5e, v5p, v6e and 7x ("system architecture");
NVIDIA's data sheets of A100 80GB SXM, H100 SXM and H200 SXM; the table of compute capabilities in
the CUDA C++ Programming Guide; the vector memory of TPUs is what JAX's Pallas states of them.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import ClassVar

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Variables of a process that compiles for what is not there, to be set before it starts."""
INSTALL = 'python -m pip install -e ".[aot]"'
"""What to do where a compiler is missing."""


@dataclass(frozen=True)
class Target(ABC):
    """One kind of accelerator."""

    name: str
    device_kinds: tuple[str, ...]
    """How the names begin that JAX gives such devices."""
    peak_flops: float
    """Dense bfloat16 operations per second."""
    bandwidth: float
    """Bytes per second from and to the device's memory."""
    memory: int
    """Bytes of the device's memory."""
    on_chip: int
    """Bytes that a kernel can reserve: a TPU core's VMEM, or a GPU block's shared memory."""
    cores: int
    """TensorCores or streaming multiprocessors."""

    platform: ClassVar[str]
    """JAX's name of the family."""
    packages: ClassVar[tuple[str, ...]]
    """The distributions that compile for it."""

    def require(self) -> None:
        """Make sure that its compiler is installed.

        Raises:
            ModuleNotFoundError: it is not; says what to install.
        """
        for package in self.packages:
            try:
                version(package)
            except PackageNotFoundError:
                raise ModuleNotFoundError(
                    f"to compile for {self.name}, {package} has to be installed: {INSTALL}"
                ) from None

    def describe(self) -> topologies.TopologyDescription:
        """Return one host of such devices, to compile for; set `ENVIRONMENT` before.

        Raises:
            ModuleNotFoundError: its compiler is not installed.
            NotImplementedError: the installed one does not know it.
        """
        self.require()
        return self._topology()

    @abstractmethod
    def _topology(self) -> topologies.TopologyDescription: ...

    def tracing(self) -> AbstractContextManager[object]:
        """Return the context in which programs for it are traced and lowered."""
        return nullcontext()


@dataclass(frozen=True)
class TPU(Target):
    """A Tensor Processing Unit; one host of them has four chips."""

    topology: str = ""
    """What libtpu calls one host."""
    chip: str = "default"
    """How libtpu joins a chip's cores into devices."""

    platform = "tpu"
    packages = ("libtpu",)

    def _topology(self):
        try:
            return topologies.get_topology_desc(
                self.topology, platform="tpu", chip_config_name=self.chip
            )
        except jax.errors.JaxRuntimeError as error:
            raise NotImplementedError(
                f"libtpu {version('libtpu')} does not know the topology {self.topology} of "
                f"{self.name}, so a newer one is needed ({error})"
            ) from error


@dataclass(frozen=True)
class GPU(Target):
    """An NVIDIA GPU."""

    capability: tuple[int, int] = (9, 0)
    """Compute capability."""
    shared_per_core: int = 233472
    fpus_per_core: int = 128
    l2: int = 0
    clock_ghz: float = 1.98

    platform = "gpu"
    packages = ("jax-cuda13-plugin", "jax-cuda13-pjrt")

    @property
    def description(self) -> str:
        """What XLA has to know of the device, as the text of its GpuTargetConfigProto."""
        major, minor = self.capability
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
              shared_memory_per_block: 49152 shared_memory_per_block_optin: {self.on_chip}
              shared_memory_per_core: {self.shared_per_core} core_count: {self.cores}
              fpus_per_core: {self.fpus_per_core} block_dim_limit_x: 2147483647
              block_dim_limit_y: 65535 block_dim_limit_z: 65535
              memory_bandwidth: {self.bandwidth:.0f} l2_cache_size: {self.l2}
              clock_rate_ghz: {self.clock_ghz} device_memory_size: {self.memory}
              cuda_compute_capability {{ major: {major} minor: {minor} }}
              registers_per_core_limit: 65536 registers_per_block_limit: 65536
            }}
            platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 12 }}
            runtime_version {{ major: 13 }} device_description_str: "{self.device_kinds[0]}"
        """

    def _topology(self):
        try:
            return topologies.get_topology_desc(
                self.name, platform="cuda", target_config=self.description, topology="1x1x1"
            )
        except jax.errors.JaxRuntimeError as error:
            raise NotImplementedError(
                f"jax-cuda13-pjrt {version('jax-cuda13-pjrt')} can't describe {self.name}: {error}"
            ) from error

    def tracing(self):
        """Lowering a Pallas kernel asks the mesh for the device, from JAX 0.11 on."""
        device = AbstractDevice(self.device_kinds[0], num_cores=self.cores, platform="gpu")
        mesh = AbstractMesh((1,), ("x",), (AxisType.Explicit,), abstract_device=device)
        return jax.sharding.use_abstract_mesh(mesh)


MIB, GIB = 2**20, 2**30

# fmt: off
TARGETS: dict[str, Target] = {target.name: target for target in (
    TPU("tpu-v4", ("TPU v4",), 275e12, 1.228e12, 32 * GIB, 16 * MIB, 2, "v4:2x2x1", "megacore"),
    TPU("tpu-v5e", ("TPU v5 lite", "TPU v5e"), 197e12, 0.819e12, 16 * GIB, 128 * MIB, 1, "v5e:2x2"),
    TPU("tpu-v5p", ("TPU v5", "TPU v5p"), 459e12, 2.765e12, 95 * GIB, 64 * MIB, 2, "v5p:2x2x1"),
    TPU("tpu-v6e", ("TPU v6 lite", "TPU v6e"), 918e12, 1.638e12, 32 * GIB, 128 * MIB, 1, "v6e:2x2"),
    TPU("tpu-7x", ("TPU7x",), 1153.5e12, 3.69e12, 96 * GIB, 64 * MIB, 1, "tpu7x:2x2x1"),
    GPU("a100", ("NVIDIA A100",), 312e12, 2.039e12, 80 * GIB, 166912, 108,
        capability=(8, 0), shared_per_core=167936, fpus_per_core=64, l2=40 * MIB, clock_ghz=1.41),
    GPU("h100", ("NVIDIA H100",), 989e12, 3.35e12, 80 * GIB, 232448, 132, l2=50 * MIB),
    GPU("h200", ("NVIDIA H200",), 989e12, 4.8e12, 150754820096, 232448, 132, l2=60 * MIB),
)}
"""All targets by name."""
# fmt: on


def target_of(device_kind: str) -> Target | None:
    """Return the target that JAX's name of a device means; None if it is none of them."""
    fits = {
        kind: target
        for target in TARGETS.values()
        for kind in target.device_kinds
        if device_kind.startswith(kind)
    }
    return fits[max(fits, key=len)] if fits else None
