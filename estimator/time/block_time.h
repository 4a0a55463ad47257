// Times of one block (layer, embedding, head) under the block axes, and a step built from them.
// Block axes: tp, sequence_parallel, cp, cp_method, ep, etp, micro_batch, recompute, precision,
// rank_order. Nothing else of a plan changes a ModelTimes, so search computes it once per choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "estimator/plan/job.h"
#include "estimator/plan/parameters.h"
#include "estimator/time/host_time.h"
#include "estimator/time/timed_pieces.h"

namespace shardplan {

class ProductMemo;
struct BlockKernels;

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
  double forward_host_s = 0;  // launch cost beyond the GPU's time
  double backward_host_s = 0;
  double recompute_host_s = 0;  // the same more, where this block is replayed
  double forward_flops = 0;     // executed on this rank
  LocalParameters parameters;   // on this rank, before ZeRO-3 divides them

  double host_s() const { return forward_host_s + backward_host_s; }
  double forward_total_s() const { return forward_s + forward_tp_s + forward_cp_s + forward_ep_s; }
  double backward_total_s() const {
    return backward_input_s + backward_weight_s + backward_tp_s + backward_cp_s + backward_ep_s;
  }
};

// Forward of one part of a layer: its kernels, and with the communication that stays visible.
struct ReplayTime {
  double kernels_s = 0;
  double total_s = 0;
};

// The parts of a layer that recomputation can name; empty ones are zero.
struct LayerReplay {
  ReplayTime norms;
  ReplayTime projections;
  ReplayTime mla_up;
  ReplayTime attention;
  ReplayTime ffn;
  ReplayTime routed;
  ReplayTime routed_activation;
  ReplayTime shared;
  // What full recomputation does without in the last layer of every group, where backward needs the
  // layer's output no more.
  double left_out_s = 0;
  double without_gradients_s = 0;  // of forward, what runs for no backward pass
};

struct LayerTime {
  std::int64_t layer_kind = 0;  // index of the first layer with an equal LayerSpec
  BlockTime time;
  LayerReplay replay;
  LayerHost host;
};

// Which layers of a model are alike.
struct LayerKinds {
  std::vector<std::size_t> of_layer;  // of every transformer layer, in order: index into firsts
  std::vector<std::size_t> firsts;    // of every kind the first layer
};
LayerKinds layer_kinds(const ModelSpec& model);

// The head where its parts lie on different stages.
struct HeadParts {
  BlockTime logits;  // final norm, head GEMM
  BlockTime cast;
  BlockTime loss;
};

struct ModelTimes {
  BlockTime embedding;
  BlockTime head;                 // final norm, head GEMM, loss
  HeadParts head_parts;           // the same in three; zero where a framework never parts them
  BlockTime mtp;                  // one multi-token-prediction module; zero if the model has none
  std::vector<LayerTime> layers;  // one per kind
  std::size_t last_kind = 0;      // of the model's last layer, which such a module repeats
};

ModelTimes model_times(const BlockKernels& framework, const Job& job, const Plan& plan);

// The same in two steps: times of a plan without recomputation, and what it adds to them.
// `products` keeps those of one job's GPU from plan to plan.
ModelTimes times_without_recompute(const BlockKernels& framework, const Job& job, const Plan& plan,
                                   const LayerKinds& kinds, ProductMemo* products = nullptr);
void add_recompute(const BlockKernels& framework, const Recompute& recompute, ModelTimes& times);

// What these times are made of.
ModelPieces model_pieces(const BlockKernels& framework, const Job& job, const Plan& plan);

// One transformer layer, of a layer kind of the model.
BlockTime layer_time(const BlockKernels& framework, const Job& job, const Plan& plan,
                     const LayerSpec& layer);

}  // namespace shardplan
