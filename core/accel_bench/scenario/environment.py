"""Environment variables that a scenario may set, and variables that are recorded."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping

from accel_bench.errors import ScenarioError
from accel_bench.scenario.settings import MAXIMUM_THREADS

SWITCHES = frozenset(
    """
    CUBLASLT_WORKSPACE_SIZE CUBLAS_WORKSPACE_CONFIG NVIDIA_TF32_OVERRIDE
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT

    CUDA_AUTO_BOOST CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING
    CUDA_MODULE_LOADING CUDA_VISIBLE_DEVICES

    ATEN_CPU_CAPABILITY MKL_CBWR MKL_DEBUG_CPU_TYPE MKL_DISABLE_FAST_MM MKL_DYNAMIC
    MKL_ENABLE_INSTRUCTIONS MKL_NUM_THREADS ONEDNN_MAX_CPU_ISA
    TORCH_MKLDNN_MATMUL_MIN_DIM TORCH_MKLDNN_MATMUL_MIN_SIZE

    GOMP_CPU_AFFINITY GOMP_SPINCOUNT KMP_AFFINITY KMP_BLOCKTIME KMP_DUPLICATE_LIB_OK
    KMP_HW_SUBSET KMP_LIBRARY OMP_DYNAMIC OMP_MAX_ACTIVE_LEVELS OMP_NUM_THREADS OMP_PLACES
    OMP_PROC_BIND OMP_SCHEDULE OMP_STACKSIZE OMP_THREAD_LIMIT OMP_WAIT_POLICY

    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
    PYTORCH_NO_CUDA_MEMORY_CACHING

    NCCL_ALGO NCCL_BUFFSIZE NCCL_CROSS_NIC NCCL_DEBUG NCCL_IB_DISABLE NCCL_LAUNCH_MODE
    NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_NSOCKS_PERTHREAD
    NCCL_NTHREADS NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_PROTO NCCL_SHM_DISABLE
    NCCL_SOCKET_NTHREADS TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS
    TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_HIGH_PRIORITY TORCH_DISTRIBUTED_DEBUG

    TORCH_COMPILE_DISABLE TORCHDYNAMO_DISABLE TORCHINDUCTOR_AUTOGRAD_CACHE
    TORCHINDUCTOR_BENCHMARK_FUSION TORCHINDUCTOR_COMPILE_THREADS
    TORCHINDUCTOR_COMPREHENSIVE_PADDING TORCHINDUCTOR_COOPERATIVE_REDUCTIONS
    TORCHINDUCTOR_COORDINATE_DESCENT_TUNING TORCHINDUCTOR_CPP_DYNAMIC_THREADS
    TORCHINDUCTOR_CPP_MIN_CHUNK_SIZE TORCHINDUCTOR_CPP_WEIGHT_PREPACK TORCHINDUCTOR_CPP_WRAPPER
    TORCHINDUCTOR_CUDAGRAPHS TORCHINDUCTOR_DETERMINISTIC TORCHINDUCTOR_DYNAMIC_SCALE_RBLOCK
    TORCHINDUCTOR_EMULATE_PRECISION_CASTS TORCHINDUCTOR_ENABLE_PDL
    TORCHINDUCTOR_FORCE_DISABLE_CACHES TORCHINDUCTOR_FREEZING TORCHINDUCTOR_FX_GRAPH_CACHE
    TORCHINDUCTOR_GRAPH_PARTITION TORCHINDUCTOR_LAYOUT_OPTIMIZATION
    TORCHINDUCTOR_LOOP_ORDERING_AFTER_FUSION TORCHINDUCTOR_MAX_AUTOTUNE
    TORCHINDUCTOR_MAX_AUTOTUNE_GEMM TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS
    TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE TORCHINDUCTOR_MEMORY_PLANNING
    TORCHINDUCTOR_MIX_ORDER_REDUCTION TORCHINDUCTOR_MULTI_KERNEL TORCHINDUCTOR_ONLINE_SOFTMAX
    TORCHINDUCTOR_PERMUTE_FUSION TORCHINDUCTOR_PERSISTENT_REDUCTIONS
    TORCHINDUCTOR_PROLOGUE_FUSION TORCHINDUCTOR_SHAPE_PADDING TORCHINDUCTOR_SPLIT_REDUCTIONS
    TORCHINDUCTOR_USE_FAST_MATH

    TRITON_ALWAYS_COMPILE TRITON_F32_DEFAULT TRITON_INTERPRET
    """.split()
)
"""Variables that a scenario may set without `--allow-env`, each read as a number, a word of a list,
or on and off.

By group: cuBLAS and TF32; devices and kernel launches; the CPU's instructions and matrix products;
threads and where they run; allocators; NCCL's algorithms and channels; the compiler's choices;
Triton's. None names a program, a module, a file or an address. Excluded since they do name one:
`TORCH_LOGS` (imports the modules it names), `TORCH_TRACE`, `NCCL_SOCKET_IFNAME`, all compilers, log
files, cache folders and hooks.
"""

RECORDED = (
    "CUBLAS_*",
    "CUDA_*",
    "KMP_*",
    "MKL_*",
    "NCCL_*",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_*",
    "PYTORCH_*",
    "TORCH_*",
    "TORCHINDUCTOR_*",
    "TRITON_*",
)
"""Patterns of variables that can change how fast a program runs, wherever they were set."""

NOT_RECORDED = (
    "*DIR",
    "*FILE",
    "*HOME",
    "*LIBRARIES",
    "*PATH",
    "*PLUGIN*",
    "CUDA_INJECTION*",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
)
"""Exceptions to the recorded patterns: their values name places of one machine."""


OPENMP_DEFAULTS = {"OMP_WAIT_POLICY": "passive"}
"""Defaults of a worker's OpenMP variables: threads that wait sleep.

A thread that spins takes the core from the thread that it waits for as soon as there is other work:
on a loaded machine of two cores, two threads that slept trained 2 to 20 times as fast.
`benchmarks/openmp-waiting.yaml` measures it.
"""

ABOUT_WAITING = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")
"""Variables that make OpenMP's threads spin or sleep while they wait."""


def check_environment(
    environment: Mapping[str, str], where: Callable[[tuple[str, ...]], str], allow_all: bool
) -> None:
    """Raise ScenarioError for variables that could load code or carry secrets, or for invalid ones.
    `where` returns a path's location in the file; `allow_all` permits names outside SWITCHES."""
    for name in environment:
        place = where(("environment", name))
        if not name or "=" in name or "\0" in name or "\0" in environment[name]:
            raise ScenarioError(f"{place}: {name!r} is not the name of an environment variable")
        if not allow_all and name not in SWITCHES:
            raise ScenarioError(
                f"{place}: a scenario may not set {name}; if you trust it, use --allow-env"
            )
        if name.endswith("_THREADS") and _count(environment[name]) > MAXIMUM_THREADS:
            raise ScenarioError(
                f"{place}: {name} is {environment[name][:40]}; the limit is {MAXIMUM_THREADS}"
            )


def _count(text: str) -> int:
    """Return the largest number of threads in a list like `4,2`; 0 without a number."""
    levels = (level.strip() for level in text.split(","))
    return max((int(level[:20]) for level in levels if level.isdecimal()), default=0)


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a process that can change a result, sorted by name."""
    return {name: environment[name] for name in sorted(environment) if _is_recorded(name)}


def _is_recorded(name: str) -> bool:
    matches = (any(fnmatch.fnmatchcase(name, pattern) for pattern in RECORDED), name in SWITCHES)
    return any(matches) and not any(fnmatch.fnmatchcase(name, pattern) for pattern in NOT_RECORDED)
