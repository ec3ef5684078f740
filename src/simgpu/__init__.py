"""SimGPU: GPUs that are not there, to Kubernetes, Prometheus, NVML and the person watching."""

__version__ = "0.1.0"
