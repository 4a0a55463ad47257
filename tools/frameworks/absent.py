"""Frameworks without the packages that a training step does not need: what only data loaders, logs
and checkpoints use is stood in for by empty names."""
import importlib.abc
import importlib.machinery
import os
import sys
import types

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ABSENT = ("tyro", "datasets", "torchdata", "tokenizers", "tensorboard", "wandb", "torchao", "PIL",
          "huggingface_hub", "safetensors", "transformers", "tomli", "einops", "dacite", "datatrove")


class AnythingModule(types.ModuleType):
    """Stands in for a package that the model does not need."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None,
                               "__class_getitem__": classmethod(lambda cls, item: cls)})


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
