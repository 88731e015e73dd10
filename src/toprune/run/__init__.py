"""The runtime: a bundle's ONNX file with onnxruntime, tokenizers and numpy, and nothing else."""
