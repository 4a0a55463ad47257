// Times of one block (layer, embedding, head) under the block axes, and a step built from them.
// Block axes: tp, sequence_parallel, cp, cp_method, ep, etp, micro_batch, recompute, precision,
// rank_order. Nothing else of a plan changes a ModelTimes, so search computes it once per choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "estimator/job.h"
#include "estimator/parameters.h"
#include "estimator/step_time.h"

namespace shardplan {

// Seconds of one microbatch on one rank. Communication is what stays visible after overlap.
// recompute_s is what replaying this block costs, communication included; under full recomputation
// by blocks only the first layers of a chunk pay it.
struct BlockTime {
  double forward_s = 0;          // compute
  double backward_input_s = 0;   // gradient with respect to the input
  double backward_weight_s = 0;  // gradient with respect to the weights
  double recompute_s = 0;        // forward replayed inside backward
  double forward_tp_s = 0;       // exposed communication, by dimension and direction
  double backward_tp_s = 0;
  double forward_cp_s = 0;
  double backward_cp_s = 0;
  double forward_ep_s = 0;
  double backward_ep_s = 0;
  double host_s = 0;           // launch cost not hidden, both directions
  double forward_flops = 0;    // executed on this rank
  LocalParameters parameters;  // on this rank, before ZeRO-3 divides them

  double forward_total_s() const { return forward_s + forward_tp_s + forward_cp_s + forward_ep_s; }
  double backward_total_s() const {
    return backward_input_s + backward_weight_s + backward_tp_s + backward_cp_s + backward_ep_s;
  }
};

struct LayerTime {
  std::int64_t layer_kind = 0;  // index of the first layer with an equal LayerSpec
  BlockTime time;
};

struct ModelTimes {
  BlockTime embedding;
  BlockTime head;                  // final norm, head GEMM, loss
  BlockTime mtp;                   // one multi-token-prediction module; zero if the model has none
  std::vector<LayerTime> layers;   // one per distinct LayerSpec
  std::vector<std::size_t> kinds;  // of every transformer layer, in order: index into layers
  double flops_per_token = 0;      // model_flops_per_token of the job
};

ModelTimes model_times(const Job& job, const Plan& plan);

// The step from its pieces; estimate_step_time(job, plan) is step_time_of(job, plan,
// model_times(...)).
StepTime step_time_of(const Job& job, const Plan& plan, const ModelTimes& times);

// One transformer layer, of a layer kind of the model.
BlockTime layer_time(const Job& job, const Plan& plan, const LayerSpec& layer);

// Model FLOPs per token: 6 x matmul parameters + attention with the causal triangle counted once.
double model_flops_per_token(const Job& job);

}  // namespace shardplan
