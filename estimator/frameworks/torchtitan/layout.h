// How torchtitan v0.2.2 lays out parameters, layers and pipelines.
#pragma once

#include "estimator/plan/framework_profile.h"

namespace shardplan::torchtitan {

// The bias of expert choice is a buffer (models/moe/moe.py, expert_bias). What is left of layers
// goes to the first chunks, one each (distributed/pipeline_parallel.py,
// generate_llm_fqn_per_model_part). Rows of experts were measured even. FSDP2's gradients are made
// by a layer's first backward pass, and under a pipeline its parameters are gathered by actions of
// the schedule (torch/distributed/pipelining/schedules.py, _add_unshard_reshard).
inline constexpr FrameworkLayout kLayout = {.router_bias_is_buffer = true,
                                            .spreads_uneven_layers = true,
                                            .layers_differ_by_place = true,
                                            .blocks_make_gradients = true,
                                            .gathers_for_pipeline = true,
                                            .model_parts = kGptOssParts};

}  // namespace shardplan::torchtitan
