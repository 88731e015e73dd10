"""A bundle: a Hugging Face model directory with a plan, a report and ONNX files."""
