// What time/ asks of a framework about the kernels of its blocks: which run around products and
// attention, what they move, and what runs beside what.
#pragma once

#include <cstdint>
#include <string>

#include "estimator/plan/job.h"
#include "estimator/time/block_time.h"
#include "estimator/time/elementwise.h"
#include "estimator/time/kernel_time.h"
#include "estimator/time/overlap_time.h"

namespace shardplan {

struct BlockContext;
struct LayerParts;

// The loss, and what it asks of the head's product in front of it.
struct LossKernels {
  Passes logit = {};        // per logit of this rank
  std::int64_t tokens = 0;  // that it takes at once; the head's product takes as many
  // The products of its pieces add to one gradient of the head's weight, which is handed on once.
  bool sums_weight_gradient = false;
  // Kernels of that sum, or of the weight's own cast, per element of the weight.
  bool has_weight_kernels = false;
  KernelBytes weight = {};
};

// A loss in two, which may lie on different stages: the cast of logits to fp32, and the loss of
// what it gives.
struct PartedLoss {
  Passes cast = {};
  Passes loss = {};
};

// One row a framework.
struct BlockKernels {
  const HostLaunches& host;  // of the host that launches them

  // --- around products ---

  // Kernels of a transformer layer.
  LayerKernels (*layer)(const Job& job, const Plan& plan);
  // What it costs, per element, that a product does not add to the main gradient itself.
  KernelBytes (*weight_gradient)(const Job& job, const Plan& plan);
  // Whether weights of products have gradients; none: always.
  bool (*trains_weights)(const Job& job) = nullptr;
  // Adds what runs beside a layer's products: adapters, weights that are unpacked or cast; none:
  // nothing.
  void (*add_beside_products)(const BlockContext& context, const LayerSpec& layer,
                              LayerParts& parts) = nullptr;
  // Whether products do add to it; none: where the profile says so.
  bool (*adds_weight_gradients)(const Job& job, const Plan& plan) = nullptr;
  // The rounding of a linear layer's factors to fp8; none: what libraries round of every
  // microbatch, its input and its output's gradient.
  BlockTime (*fp8_rounding)(const BlockContext& context, const ProductShape& layer) = nullptr;
  // The share that fp8 products reach of the rate of those with one scale a tensor; none: all.
  double (*fp8_rate_share)(const Job& job) = nullptr;
  // Whether tensor cores round what products of fp32 read to TF32; none: they do not.
  bool (*rounds_to_tf32)(const Job& job) = nullptr;
  // Sequence parallelism gathers what fp8 products take before it is rounded, not behind.
  bool gathers_before_rounding = false;
  // Grouped products of experts run in kernels whose own rates were measured.
  bool has_grouped_kernels = false;
  // Seconds that each product of experts takes beyond its part of one product of all their rows;
  // none: nothing.
  double TimeConstants::*apart_product_s = nullptr;

  // --- attention ---

  // Which kernels run attention; none: those that suit the GPU best.
  AttentionBackend (*attention_kernels)(const Job& job, const Plan& plan) = nullptr;
  // Whether attention is batched products and kernels over all scores; none: never.
  bool (*saves_probabilities)(const Job& job, const Plan& plan) = nullptr;
  // Whether a backward of attention is deterministic, and what it moves besides is counted; none:
  // never.
  bool (*adds_deterministically)(const Job& job) = nullptr;
  // Under context parallelism a call has one sequence, and keys of one are gathered beside the
  // attention of another.
  bool attends_by_sequence = false;
  // Whether backward calls on gathered keys run in kernels that add up gradients by themselves;
  // none: never.
  bool (*adds_key_gradients)(const Job& job, const Plan& plan) = nullptr;
  // A ring carries gradients along in fp32, not in the type of activations.
  bool sends_gradients_in_fp32 = false;
  // Gathered keys are attended to block by block as in a ring, and their gradients go round.
  bool attends_in_rounds = false;
  // Memory-bound kernels that put blocks of keys together; none: attention does so itself.
  BlockTime (*context_parallel_merges)(const BlockContext& context, const LayerSpec& layer,
                                       const AttentionWork& work) = nullptr;

  // Adds what mixes the tokens of a layer in place of attention or beside it, and its projections;
  // none: the framework has no such layers.
  void (*add_mixer)(const BlockContext& context, const LayerSpec& layer,
                    LayerParts& parts) = nullptr;

  // --- tensor parallelism ---

  // Layers are divided product by product: each product that reads the layer's tokens has their
  // gradient summed by itself, the embedding is whole, and logits are gathered for the loss.
  bool divides_by_product = false;

  // Copy engines move what is gathered, summed in parts, shifted around a ring or handed to the
  // next stage, where they reach all members of a group.
  bool moves_by_copies = false;
  // Pieces of the tokens in which collectives run beside products; none: Overlaps::tp_pieces.
  std::int64_t (*token_pieces)(const Job& job, const Plan& plan) = nullptr;
  // Kernels of a region of a layer whose tokens go by pieces, where what one region sums is what
  // the next one gathers; none: each region hides its own collectives.
  BlockTime (*piece_kernels)(const BlockContext& context, double in_bytes,
                             double out_bytes) = nullptr;
  // The input that was gathered stays for the weight gradient: it is not gathered again.
  bool keeps_gathered_input = false;
  // Copies in front of what is scattered along the sequence and behind what was gathered; none: it
  // lies as it should.
  BlockTime (*sequence_copies)(const BlockContext& context, double in_bytes,
                               double out_bytes) = nullptr;

  // --- experts ---

  // Whether a router's input and weight become fp32 for its product; none: never.
  bool (*casts_router)(const Job& job) = nullptr;
  // Choosing experts, and the auxiliary loss; none: not counted.
  BlockTime (*expert_choice)(const BlockContext& context) = nullptr;
  // Rows on their way to experts and back, with the kernels around it; none: no experts.
  BlockTime (*expert_exchange)(const BlockContext& context, double rows) = nullptr;
  // Rows on their way and back, as much in either direction; none: by an all-to-all each way.
  BesideCost (*exchange_cost)(const BlockContext& context, double rows) = nullptr;

  // --- the ends of a model ---

  // Forward passes of a microbatch without gradients, beside its own; none: none.
  double (*forward_passes)(const Job& job) = nullptr;
  // This rank's outputs of the layer behind the last hidden states; none: its part of the
  // vocabulary.
  std::int64_t (*head_outputs)(const Job& job, const Plan& plan) = nullptr;
  // Backward of the embedding.
  TableGradientKernels (*table_gradient)(const Job& job, const Plan& plan);
  // The loss of so many tokens on this rank.
  LossKernels (*loss)(const Job& job, const Plan& plan, std::int64_t tokens);
  // The loss in two, where they and the head's product may lie on different stages; none: always on
  // one.
  PartedLoss (*parted_loss)() = nullptr;

  // --- recomputation ---

  // What replaying parts of a layer takes; none: as much as their forward.
  LayerReplay (*replay)(const Job& job, const LayerSpec& layer, const LayerParts& parts) = nullptr;
  // What a selective policy of this name replays of a layer; none: there are no such policies.
  double (*replayed_policy_s)(const std::string& policy, const LayerTime& layer) = nullptr;
};

}  // namespace shardplan
