"""The only room with Ray, vLLM and DeepSpeed."""
