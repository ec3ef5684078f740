"""From a pod to what it does on GPUs: requests, annotations, assignment."""
