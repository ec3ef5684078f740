"""What a kubelet talks to on a real node: device plugins, and who it gave which device. gRPC lives here alone."""
