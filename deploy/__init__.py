"""How SimGPU is installed: the container image, the Helm chart and their build."""
