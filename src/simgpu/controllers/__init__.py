"""Controllers: from nodes, pods and ConfigMaps to simulated GPUs, and back to what is published in the API."""
