// Backward of a chunk's blocks: the groups that it gathers, and the gradients that they leave.
#include "estimator/frameworks/torchtitan/chunk.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kWiden = 2;  // fp32 for bf16

}  // namespace

void TitanChunk::enter_backward(std::size_t index) {
  if (!is_sharded_) {
    return;
  }
  ParameterGroup& group = groups[index];
  if (!group.is_unsharded()) {
    gather(group);
    fsdp_.unshard(group, false);
  }
  if (index > 0) {
    prefetch_backward(index);
  }
}

// The group before; of a layer with its experts, but behind the head (apply_fsdp,
// set_modules_to_backward_prefetch).
void TitanChunk::prefetch_backward(std::size_t index) {
  if (!prefetches_layers_ || index == index_of_layer(0)) {
    gather(groups[index - 1]);
    return;
  }
  std::size_t before = layers_.size() - 1;
  while (index_of_layer(before) >= index) { --before; }
  gather(group_of_layer(before));
  if (layers_[before].groups_experts && (index != index_of_head() || !has_head)) {
    gather(group_of_experts(before));
  }
}

void TitanChunk::leave_backward(ParameterGroup& group, bool with_weights) {
  if (!is_sharded_) {
    if (group.accumulated.empty() && !group.is_shared) {
      group.accumulated = std::exchange(group.gradients, {});
    }
    for (TapeTensor& gradient : group.gradients) { tape_.free(gradient); }
    group.gradients.clear();
    return;
  }
  if (!is_pipelined_) {
    fsdp_.reduce(group);
  } else if (with_weights) {
    fsdp_.accumulate(group);
  } else {
    for (TapeTensor& gradient : group.gradients) { tape_.free(gradient); }
    group.gradients.clear();
  }
}

void TitanChunk::leave_experts_backward(std::size_t layer, LayerGradients& weights,
                                        bool with_weights) {
  ParameterGroup& group = group_of_experts(layer);
  for (const Weight weight :
       {Weight::kGate, Weight::kGateBias, Weight::kDown, Weight::kUp, Weight::kDownBias}) {
    TapeTensor& gradient = weights.weights[static_cast<std::size_t>(weight)];
    if (gradient.id != 0) {
      group.gradients.push_back(std::exchange(gradient, {}));
    }
  }
  leave_backward(group, with_weights);
}

// A replay enters experts as a forward does, which keeps what was gathered to its end, and they end
// the replay for FSDP2: they are the root of a forward that began with them (torch _fsdp_state.py,
// iteration_forward_root of _root_pre_forward and _post_forward). GPT-OSS's hold most in between.
bool TitanChunk::holds_gathered_experts(std::size_t layer) const {
  return sizes_.moe.is_biased && replay_pass(layer) != LayerPass::kSaves;
}

void TitanChunk::free_held_experts(bool holds) {
  if (holds) {
    fsdp_.free_held_output();
  }
}

void TitanChunk::head_backward(Microbatch& held, TapeTensor& gradient, bool with_weights) {
  TapeTensor of_logits = head_.loss_backward(held.head);
  ParameterGroup& group = group_of_head();
  enter_backward(index_of_head());
  TapeTensor of_table;
  gradient = head_.backward(held.head, of_logits, of_table, !group.accumulated.empty());
  group.gradients.push_back(of_table);
  if (!root_holds_ends_) {
    leave_backward(group, with_weights);
  }
}

void TitanChunk::backward(std::size_t microbatch, bool with_weights) {
  tape_.enter_thread(true);
  Microbatch& held = held_[microbatch];
  TapeTensor gradient;
  if (has_head) {
    head_backward(held, gradient, with_weights);
  }
  for (std::size_t i = layers_.size(); i-- > 0;) {
    ParameterGroup& group = group_of_layer(i);
    enter_backward(index_of_layer(i));
    LayerGradients weights;
    weights.accumulates = !group.accumulated.empty();
    if (layers_[i].groups_experts) {
      const bool holds = holds_gathered_experts(i);
      eager(i).set_expert_hooks(
          {.enter = [this, i, holds] { enter_experts(i, holds); },
           .leave_forward = [this, holds] { free_held_experts(holds); },
           .leave_backward = [&] { leave_experts_backward(i, weights, with_weights); }});
    }
    layer_backward(i, held.layers[i], gradient, weights);
    for (const TapeTensor& weight : weights.weights) {
      if (weight.id != 0) {
        group.gradients.push_back(weight);
      }
    }
    leave_backward(group, with_weights);
  }
  if (has_embedding) {
    enter_backward(0);
    groups.front().gradients.push_back(embedding_.backward(gradient));
  }
  if (begins_with_end()) {
    leave_backward(groups.front(), with_weights);
  }
  // What was sent back stays in the list of sends until the next one is there.
  tape_.free(sent_gradient_);
  if (holds_last_output_ && is_pipelined_) {
    sent_gradient_ = std::exchange(gradient, {});
  }
  tape_.free(gradient);
  if (holds_last_output_ && microbatch == last_forward_) {
    last_output_ = std::exchange(held.output, {});
  }
  if (with_weights || has_head) {  // of the last stage backward_state holds the loss
    tape_.free(held.output);
  }
  if (is_sharded_ && !is_pipelined_) {
    fsdp_.end_reductions();
  }
}

void TitanChunk::make_weight_gradients(std::size_t microbatch) {
  tape_.free(held_[microbatch].output);  // of backward_state in pipelining/stage.py
  for (ParameterGroup& group : groups) {
    if (!group.accumulated.empty()) {
      continue;
    }
    const bool is_embedding = has_embedding && &group == &groups.front();
    for (const std::int64_t weight : group.weights) {
      const bool is_whole = is_embedding && weight == sizes_.table;
      group.accumulated.push_back(tape_.make(kWiden * (is_whole ? sizes_.whole_table : weight)));
    }
  }
}

}  // namespace shardplan::torchtitan
