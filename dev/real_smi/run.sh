#!/bin/bash
# Runs everything of this folder on a machine with NVIDIA's nvidia-smi and a card: results.tar.gz goes to $OUT.
here=$(cd "$(dirname "$0")" && pwd)
results=$(mktemp -d)
cd "$here" || exit
{
    uname -a; python3 --version; id -u; ls -la /usr/bin/nvidia-smi; /usr/bin/nvidia-smi -L; /usr/bin/nvidia-smi --version
    time timeout 200 python3 -m dev.real_smi.views "$here" "$results/views.json"
    time timeout 330 python3 -m dev.real_smi.trace "$here" "$results"
} 2>&1 | sed -E 's/(UUID: )GPU-[^)]*/\1GPU-.../' | tee "$results/log.txt"
tar -C "$results" -czf "$OUT/results.tar.gz" .
