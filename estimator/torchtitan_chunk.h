// The blocks of one model chunk, forward and backward of one microbatch after the other.
#pragma once

#include <memory>
#include <vector>

#include "estimator/stage_layout.h"
#include "estimator/torchtitan_compiled_layer.h"
#include "estimator/torchtitan_ends.h"

namespace shardplan {

class TitanChunk {
 public:
  TitanChunk(const Job& job, const Plan& plan, const TitanSizes& sizes, TitanTape& tape,
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
    return layer * (groups_experts_ ? 2 : 1) + (begins_with_end() ? 1 : 0);
  }
  ParameterGroup& group_of_layer(std::size_t layer) { return groups[index_of_layer(layer)]; }
  ParameterGroup& group_of_experts(std::size_t layer) { return groups[index_of_layer(layer) + 1]; }
  std::size_t index_of_head() const { return root_holds_ends_ ? 0 : groups.size() - 1; }
  ParameterGroup& group_of_head() { return groups[index_of_head()]; }
  LayerPass forward_pass(std::size_t layer) const;
  LayerPass replay_pass(std::size_t layer) const;
  TapeTensor layer_forward(LayerTensors& layer, LayerPass pass);
  void layer_backward(LayerTensors& layer, TapeTensor& gradient, LayerGradients& weights,
                      LayerPass replay);
  void gather(ParameterGroup& group);
  void enter(ParameterGroup& group);
  void enter_layer(std::size_t layer);
  void enter_experts(std::size_t layer, bool holds_output);
  void leave(ParameterGroup& group);
  void enter_backward(std::size_t index);
  void prefetch_backward(std::size_t index);
  void leave_backward(ParameterGroup& group, bool with_weights);
  void leave_experts_backward(std::size_t layer, LayerGradients& weights, bool with_weights);
  void head_backward(Microbatch& held, TapeTensor& gradient, bool with_weights);
  void end_forward(Microbatch& held);

  TitanTape& tape_;
  const TitanSizes& sizes_;
  FullyShard& fsdp_;
  std::unique_ptr<EagerLayer> eager_;  // of a compiled mixture, between its graphs
  CompiledLayer compiled_;
  bool compiles_blocks_ = false;  // as a whole
  TitanEmbedding embedding_;
  TitanHead head_;
  std::vector<bool> checkpointed_;  // by layer
  bool replays_ops_ = false;
  bool is_sharded_ = false;
  bool root_holds_ends_ = false;
  bool groups_experts_ = false;
  bool is_pipelined_ = false;
  bool holds_last_output_ = false;  // the schedule's variable does, to the next forward
  std::vector<Microbatch> held_;
  TapeTensor last_output_;
  TapeTensor sent_gradient_;
  std::size_t last_forward_ = 0;
};

}  // namespace shardplan
