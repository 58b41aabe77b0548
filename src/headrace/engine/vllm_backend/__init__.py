"""An installed vLLM as the core behind our front end: its scheduler and kernels, our tokenization, text and metrics.

`library` is the one file that imports vllm. What is converted here is pure; `connection` drives vLLM's AsyncLLM.
"""
