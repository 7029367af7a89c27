"""Inference engines: functions with the names, arguments and in-place semantics that vLLM and SGLang call.

`vllm` and `sglang` beside this file have them; neither engine is imported. The page "Inference engines" of the documentation says
how to put them in.
"""
