// A function of rows that takes them a tile at a time and keeps its input alone: each tile runs
// again in the backward pass. Source: axolotl 067b021 monkeypatch/tiled_mlp/base.py TiledMLP.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/frameworks/pieces/eager/autograd.h"
#include "estimator/frameworks/pieces/eager/checkpoint.h"

namespace shardplan::eager {

// `tiles` of nearly as many of the input's `rows`; `parameters`: what the function reads, whose
// gradients are added up beside those of the pass. The function keeps the rows' width.
Tensor tiled(Graph& graph, const Tensor& input, std::int64_t rows, std::int64_t tiles,
             const std::vector<Parameter*>& parameters, CheckpointedFunction function);

}  // namespace shardplan::eager
