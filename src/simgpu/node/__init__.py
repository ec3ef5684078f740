"""The kubelet-facing side of a real node: device plugins, and which container has which device. All gRPC is here."""
