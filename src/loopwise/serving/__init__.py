"""Serving: loops in vLLM, by its plugin entry point, and decoding with it under our rules. Only what runs a model imports vllm."""

from .engine import Capacity, ServingError, VllmEngine, load_engine
from .gap import EngineGap, measure_gap
from .generate import check_temperature, generate
from .host import VllmHost, check_vllm, vllm_version

__all__ = [
    "Capacity",
    "EngineGap",
    "ServingError",
    "VllmEngine",
    "VllmHost",
    "check_temperature",
    "check_vllm",
    "generate",
    "load_engine",
    "measure_gap",
    "vllm_version",
]
