"""Where Kubernetes' words meet devices' words: what nodes and pods are becomes what cards do, and the reverse."""
