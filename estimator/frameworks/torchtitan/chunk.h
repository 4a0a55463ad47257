// The blocks of one model chunk, forward and backward of one microbatch after the other.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "estimator/frameworks/torchtitan/compiled_layer.h"
#include "estimator/frameworks/torchtitan/ends.h"
#include "estimator/ledger/stage_layout.h"

namespace shardplan::torchtitan {

// Of layers without experts and with; where a model has one kind only, both are of that.
using SizesOfLayers = std::array<TitanSizes, 2>;

class TitanChunk {
 public:
  TitanChunk(const Job& job, const Plan& plan, const SizesOfLayers& sizes, TitanTape& tape,
             FullyShard& fsdp, const ChunkLayout& layout, std::int64_t microbatches);

  void forward_without_gradients();
  void forward(std::size_t microbatch);
  // Without weights: zero-bubble schedules make their gradients later.
  void backward(std::size_t microbatch, bool with_weights);
  void make_weight_gradients(std::size_t microbatch);

  // What the schedule does with parameters and gradients between the blocks' work.
  void gather_ahead();
  void wait_gathered();
  void reshard();
  void reduce_accumulated();
  void free_gradients();
  void end_step();

  bool has_embedding = false;
  bool has_head = false;
  // Embedding, layers, each before its experts where these are a group, final norm and head; or the
  // root's, with both ends, and layers.
  std::vector<ParameterGroup> groups;
  TapeTensor rotary_table;
  TapeTensor untied_table;  // until the first step

 private:
  struct Microbatch {
    std::vector<LayerTensors> layers;
    HeadTensors head;
    TapeTensor output;  // sent on
  };

  bool begins_with_end() const { return has_embedding || (has_head && root_holds_ends_); }
  std::size_t index_of_layer(std::size_t layer) const {
    return layers_[layer].group + (begins_with_end() ? 1 : 0);
  }
  ParameterGroup& group_of_layer(std::size_t layer) { return groups[index_of_layer(layer)]; }
  ParameterGroup& group_of_experts(std::size_t layer) { return groups[index_of_layer(layer) + 1]; }
  std::size_t index_of_head() const { return root_holds_ends_ ? 0 : groups.size() - 1; }
  ParameterGroup& group_of_head() { return groups[index_of_head()]; }
  LayerPass forward_pass(std::size_t layer) const;
  LayerPass replay_pass(std::size_t layer) const;
  EagerLayer& eager(std::size_t layer) { return *eager_[layers_[layer].is_moe ? 1 : 0]; }
  void add_layer(const TitanBlock& block, bool checkpointed);
  TapeTensor embedding_forward();
  TapeTensor layer_forward(std::size_t index, LayerTensors& layer, LayerPass pass);
  void layer_backward(std::size_t index, LayerTensors& layer, TapeTensor& gradient,
                      LayerGradients& weights);
  void gather(ParameterGroup& group);
  void enter(ParameterGroup& group);
  void enter_layer(std::size_t layer);
  void enter_experts(std::size_t layer, bool holds_output);
  void leave(ParameterGroup& group);

  // chunk_backward.cpp
  void enter_backward(std::size_t index);
  void prefetch_backward(std::size_t index);
  void leave_backward(ParameterGroup& group, bool with_weights);
  bool holds_gathered_experts(std::size_t layer) const;
  void free_held_experts(bool holds);
  void leave_experts_backward(std::size_t layer, LayerGradients& weights, bool with_weights);
  void head_backward(Microbatch& held, TapeTensor& gradient, bool with_weights);

  TitanTape& tape_;
  const TitanSizes& sizes_;
  FullyShard& fsdp_;
  std::array<std::unique_ptr<EagerLayer>, 2> eager_;  // as their sizes; of a compiled mixture,
                                                      // between its graphs
  CompiledLayer compiled_;
  bool compiles_blocks_ = false;  // as a whole
  TitanEmbedding embedding_;
  TitanHead head_;
  struct Layer {
    bool is_moe = false;
    bool checkpointed = false;
    std::size_t group = 0;  // counted from the first layer's
    bool groups_experts = false;
  };
  std::vector<Layer> layers_;
  bool replays_ops_ = false;
  bool is_sharded_ = false;
  bool root_holds_ends_ = false;
  bool prefetches_layers_ = false;  // with expert parallelism
  bool is_pipelined_ = false;
  bool holds_last_output_ = false;  // the schedule's variable does, to the next forward
  std::vector<Microbatch> held_;
  TapeTensor last_output_;
  TapeTensor sent_gradient_;
  std::size_t last_forward_ = 0;
};

}  // namespace shardplan::torchtitan
