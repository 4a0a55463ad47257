// One torchtitan layer as the trainer runs it: every tensor in the order in which it is made and
// freed, from allocation traces of v0.2.2 (data/frameworks/torchtitan.md).
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "estimator/frameworks/torchtitan/sizes.h"
#include "estimator/ledger/allocation_tape.h"

namespace shardplan::torchtitan {

// How a layer's forward runs.
enum class LayerPass {
  kSaves,         // autograd saves what backward needs
  kSavesNothing,  // under full recompute, or without gradients
  kSavesOps,      // under recompute by operations: some products, attention and reductions
  kReplay,        // again, in backward
  kReplayOps,     // again but for the operations that were saved
};

// Whether what autograd needs outlives the pass.
inline bool graph_saves(LayerPass pass) {
  return pass != LayerPass::kSavesNothing && pass != LayerPass::kSavesOps;
}

// The tape, and what depends on where in the step an operation runs.
class TitanTape : public ProductTape {
 public:
  using ProductTape::ProductTape;

  // Casts of weights that autocast keeps until forward ends.
  std::vector<TapeTensor> autocast_cache;
};

// Casts that autocast makes for a product.
struct ProductCasts {
  TapeTensor weight;
  TapeTensor input;
};

// What backward needs of a norm over heads besides its input: of the fused kernel fp32 statistics;
// under autocast, whose weight is fp32, of its operations the input and the result in fp32, too.
struct HeadNorm {
  TapeTensor statistics, wide_input, wide_result;
};

// What a mixture of experts holds besides.
struct MoeTensors {
  TapeTensor logits, probabilities, choices, chosen, denominators, weights;
  TapeTensor order, order_weights, token_of_row, slots;
  TapeTensor sent, wide, padded, returned, scored;
  TapeTensor saved_received, saved_returned;  // of exchanges, for the replay
  TapeTensor shared_gate, shared_silu, shared_up, shared_product, shared_down;
};

// What latent attention holds besides queries, keys, its output and statistics.
struct LatentTensors {
  TapeTensor query_down, query_norm;
  TapeTensor key_value_down, key_value_norm, key_value;
  TapeTensor projected;  // its output, where a checkpoint by operations saves it
};

// What attention with sinks holds besides queries, keys, values, output and statistics: these
// scaled to natural logarithms; the factors of the output in fp32 and in bf16.
struct SinkTensors {
  TapeTensor scaled_statistics, factors, cast_factors;
};

// What experts with biases hold besides the input of either product: both halves of the first one's
// result as they lie, gate behind its bound, its sigmoid, their product, up behind its bound and
// with one added; and for every row its expert, for either bias.
struct BiasedTensors {
  TapeTensor biased, gate, sigmoid, gated, raised;
  TapeTensor first_experts, second_experts;
};

// What a layer holds of one microbatch.
struct LayerTensors {
  TapeTensor input;
  TapeTensor norm, norm_statistics, gathered;
  TapeTensor query, key, value;  // of the projections
  TapeTensor angles, rotated_query, rotated_key;
  HeadNorm query_norm, key_norm;  // of Qwen 3
  LatentTensors latent;
  SinkTensors sink;
  BiasedTensors expert;
  TapeTensor rotary_cast;  // Qwen 3's table in bf16, which FSDP casts for the block
  TapeTensor cosines, sines;
  TapeTensor output, log_sum_exp, output_copy;
  TapeTensor reduced_output;  // of the reduce-scatter, where it is saved
  TapeTensor after_attention;
  TapeTensor ffn_norm, ffn_statistics, ffn_gathered;
  TapeTensor gate, silu, up, product;
  TapeTensor down, reduced_down;
  std::array<ProductCasts, kNumWeights> casts;
  TapeTensor gathered_key_values;        // of all ranks, where a compiled block saves them
  std::vector<TapeTensor> ring_outputs;  // of every round, where operations are saved
  MoeTensors moe;
};

// Gradients of a layer's weights as backward makes them, before they are reduced.
struct LayerGradients {
  std::array<TapeTensor, kNumWeights> weights;
  bool accumulates = false;  // into those of an earlier microbatch
};

// What FSDP2 does where a layer's experts, a group of their own, begin and end. They may be entered
// again: a replay leaves them gathered for backward.
struct ExpertGroupHooks {
  std::function<void()> enter;
  std::function<void()> leave_forward;
  std::function<void()> leave_backward;
};

class EagerLayer {
 public:
  EagerLayer(TitanTape& tape, const TitanSizes& sizes) : tape_(tape), sizes_(sizes) {}
  virtual ~EagerLayer() = default;

  // For the passes that follow; none: the experts are no group of their own.
  void set_expert_hooks(ExpertGroupHooks hooks) { hooks_ = std::move(hooks); }

  // Reads layer.input; the new residual stream.
  TapeTensor forward(LayerTensors& layer, LayerPass pass);
  // `gradient` of the residual stream, added to in place; none: in a buffer of the pipeline, which
  // is not written. `replay`: what backward runs again; kSaves: nothing.
  void backward(LayerTensors& layer, TapeTensor& gradient, LayerGradients& weights,
                LayerPass replay);

 protected:
  // eager_layer.cpp
  TapeTensor gather(bool joins);
  TapeTensor reduce(bool is_saved);
  TapeTensor product(LayerTensors& layer, Weight weight, std::int64_t bytes, LayerPass pass,
                     bool computes = true);
  void rotate(LayerTensors& layer, LayerPass pass);
  void attend(LayerTensors& layer, LayerPass pass);
  virtual void attention(LayerTensors& layer, LayerPass pass);
  void feed_forward(LayerTensors& layer, LayerPass pass);
  void end_feed_forward(LayerTensors& layer, LayerPass pass);
  // Gradient of the input of a product in the dtype of the input.
  TapeTensor product_backward(LayerTensors& layer, LayerGradients& weights, Weight weight,
                              std::int64_t input_bytes, TapeTensor& gradient,
                              std::initializer_list<TapeTensor*> last_used);
  void finish_weight(LayerGradients& weights, Weight weight);
  void add(TapeTensor& sum, TapeTensor& addend, bool in_place);
  virtual void norm_backward(TapeTensor& gradient, TapeTensor& of_output, TapeTensor& input,
                             TapeTensor& statistics);
  TapeTensor reduce_gradient(TapeTensor& sum);
  TapeTensor projection_gradient();
  void feed_forward_backward(LayerTensors& layer, TapeTensor& gradient, TapeTensor& of_output,
                             LayerGradients& weights);
  virtual void attention_backward(LayerTensors& layer, TapeTensor& gradient,
                                  LayerGradients& weights);
  void rotate_backward(LayerTensors& layer, TapeTensor& query, TapeTensor& key);

  // qwen3.cpp
  TapeTensor norm_heads(TapeTensor& input, HeadNorm& norm, std::int64_t statistics, LayerPass pass,
                        bool keeps_input);
  void norm_heads_backward(TapeTensor& gradient, TapeTensor& input, HeadNorm& norm,
                           std::int64_t statistics);
  void take_rotary(LayerTensors& layer, LayerPass pass);
  void rotate_halves(LayerTensors& layer, LayerPass pass);
  void rotate_halves_backward(LayerTensors& layer, TapeTensor& query, TapeTensor& key);

  // latent_layer.cpp
  bool keeps(Weight weight, LayerPass pass) const;
  TapeTensor product_or_saved(Weight weight, std::int64_t bytes, LayerPass pass, TapeTensor& saved);
  TapeTensor turn_in_fp32(std::int64_t bytes);
  TapeTensor latent_queries(LayerTensors& layer, LayerPass pass);
  TapeTensor latent_key_values(LayerTensors& layer, LayerPass pass, TapeTensor& turned_key);
  void latent_attention(LayerTensors& layer, LayerPass pass);
  TapeTensor norm_latent_backward(TapeTensor& of_output, TapeTensor& input, TapeTensor& statistics,
                                  bool copies);
  void latent_attention_backward(LayerTensors& layer, TapeTensor& gradient,
                                 LayerGradients& weights);
  TapeTensor latent_query_backward(LayerTensors& layer, TapeTensor& of_query,
                                   LayerGradients& weights);
  TapeTensor latent_key_value_backward(LayerTensors& layer, TapeTensor& of_key,
                                       TapeTensor& of_value, LayerGradients& weights);

  // moe_layer.cpp
  void shared_experts(LayerTensors& layer, LayerPass pass);
  void moe(LayerTensors& layer, LayerPass pass);
  virtual void route(LayerTensors& layer, LayerPass pass);
  void sort(std::int64_t rows);
  void score_rows(LayerTensors& layer, LayerPass pass);
  void dispatch(LayerTensors& layer, LayerPass pass);
  TapeTensor expert_product(LayerTensors& layer, Weight weight, std::int64_t bytes, LayerPass pass);
  virtual TapeTensor expert_products(LayerTensors& layer, LayerPass pass);
  void run_experts(LayerTensors& layer, LayerPass pass);
  TapeTensor combine(LayerTensors& layer, LayerPass pass);

  // moe_layer_backward.cpp
  TapeTensor shared_backward(LayerTensors& layer, LayerGradients& weights);
  void sort_positions(std::int64_t rows);
  TapeTensor score_rows_backward(LayerTensors& layer, TapeTensor& of_rows);
  TapeTensor moe_output_gradient();
  TapeTensor combine_backward(LayerTensors& layer, TapeTensor& of_output, TapeTensor& of_weights,
                              TapeTensor& of_shared_input, LayerGradients& weights);
  virtual TapeTensor experts_backward(LayerTensors& layer, TapeTensor& of_output,
                                      LayerGradients& weights);
  TapeTensor dispatch_backward(LayerTensors& layer, TapeTensor& of_padded, TapeTensor& of_weights);
  virtual void route_backward(LayerTensors& layer, TapeTensor& of_tokens, TapeTensor& of_weights,
                              LayerGradients& weights);
  void moe_backward(LayerTensors& layer, TapeTensor& gradient, TapeTensor& of_output,
                    LayerGradients& weights);

  static void run(const std::function<void()>& hook) {
    if (hook) {
      hook();
    }
  }

  TitanTape& tape_;
  const TitanSizes& sizes_;
  ExpertGroupHooks hooks_;
};

}  // namespace shardplan::torchtitan
