"""From a pruned torch model to an ONNX file that is checked against it."""
