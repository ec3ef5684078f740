#!/bin/sh
# Runs a performance test as perf-tests' run-e2e.sh does: ./run-e2e.sh cluster-loader2 --testconfig=FILE [options...]
set -eu

here=$(cd "$(dirname "$0")" && pwd -P)

usage() {
	cat <<'TEXT'
Usage: run-e2e.sh <tool-name> [options...]

Tools:
  cluster-loader2       Kubernetes cluster performance and scale testing: 'simgpu loadtest' with these options
  network-performance   not part of SimGPU
  kube-dns              not part of SimGPU
  core-dns              not part of SimGPU
  node-local-dns        not part of SimGPU

Example:
  ./run-e2e.sh cluster-loader2 --testconfig=pkg/dependency/kwok/examples/test-config.yaml \
    --provider=skeleton --nodes=3 --report-dir=/tmp/reports
TEXT
}

case "${1:-}" in
-h | --help | help)
	usage
	exit 0
	;;
cluster-loader2)
	shift
	;;
network-performance | kube-dns | core-dns | node-local-dns)
	echo "$1: not part of SimGPU; only cluster-loader2 is" >&2
	exit 2
	;;
"")
	usage >&2
	exit 2
	;;
*)
	echo "$1: unknown tool; there are: cluster-loader2, network-performance, kube-dns, core-dns, node-local-dns" >&2
	exit 2
	;;
esac

# The program of this checkout, else the one that is installed.
for folder in "$here/../.venv/bin" "$here/../../.venv/bin"; do
	if [ -x "$folder/clusterloader2" ]; then
		exec "$folder/clusterloader2" "$@"
	fi
done
exec clusterloader2 "$@"
