"""Modules of torchtitan and Megatron-core without the packages that a training step does not need.

torchtitan and Megatron-LM are found on PYTHONPATH; torchtitan's packages are imported without their
__init__, and what only data loaders, logs and checkpoints use is stood in for by empty names.
"""
import importlib.abc
import importlib.machinery
import os
import sys
import types

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ABSENT = ("tyro", "datasets", "torchdata", "tokenizers", "tensorboard", "wandb", "torchao", "PIL",
          "huggingface_hub", "safetensors", "transformers", "tomli", "einops", "jinja2_x")


class AnythingModule(types.ModuleType):
    """Stands in for a package that the model does not need."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, item: cls)})


class AbsentPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return AnythingModule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(AbsentPackages())  # after the ordinary finders


def open_package(name):
    """A package whose modules can be imported without running its __init__."""
    if name in sys.modules:
        return
    places = [os.path.join(place, *name.split(".")) for place in sys.path]
    package = types.ModuleType(name)
    package.__path__ = [place for place in places if os.path.isdir(place)]
    sys.modules[name] = package


def titan_settings():
    """torchtitan's job_config module, importable from where its own code expects it."""
    for package in ("torchtitan", "torchtitan.config", "torchtitan.models.llama3"):
        open_package(package)
    from torchtitan.config import job_config
    sys.modules.setdefault("torch.utils.tensorboard",
                           AnythingModule("torch.utils.tensorboard"))
    settings = sys.modules["torchtitan.config"]
    settings.TORCH_DTYPE_MAP = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    for name, value in vars(job_config).items():
        setattr(settings, name, value)
    return job_config


class Sdpa(torch.nn.Module):
    """scaled_dot_product_attention on [b, heads, s, d] views of Megatron's [s, b, heads, d]."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, query, key, value, *args, **kwargs):
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=query.size(2) != key.size(2))
        s, b = query.shape[:2]
        return out.permute(2, 0, 1, 3).reshape(s, b, -1)
