"""CUDA graphs: captured training steps of replicas, captured predictions, and their runner."""
