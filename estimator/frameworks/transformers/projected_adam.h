// GaLore's and APOLLO's AdamW, whose gradients of layers' matrices are projected. Sources:
// galore-torch 1.0 adamw.py, galore_projector.py; apollo-torch 1.0.3 apollo.py,
// random_projector.py.
#pragma once

#include <memory>

#include "estimator/frameworks/transformers/program_optimizers.h"

namespace shardplan::transformers {

std::unique_ptr<ProgramOptimizer> projected_adamw(eager::Graph& graph, const Job& job);

}  // namespace shardplan::transformers
