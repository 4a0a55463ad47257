// Calls of the model's modules, into which others hook.
#include "estimator/frameworks/pieces/eager/collectives.h"
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/huggingface/model.h"

namespace shardplan::huggingface {

using eager::Module;
using eager::Tensor;

// enable_input_require_grads hooks into the embedding before most others do.
Tensor CausalLm::embed(const Tensor& token_ids) {
  return eager::call_module(
      graph_, {&table_, "embed_tokens", {&table_}}, token_ids, [&](const Tensor& x) {
        const Tensor hidden = eager::embedding(graph_, x, table_in_use().data,
                                               {.rows = sizes_.vocab, .width = sizes_.hidden});
        const bool is_first = graph_.modules != nullptr && !graph_.modules->comes_first();
        return is_first && asks_for_inputs() ? with_gradient(hidden) : hidden;
      });
}

// ModulesToSaveWrapper calls the original while adapters are off.
eager::Parameter& CausalLm::table_in_use() {
  return adapters_are_off_ && job_.adapters.trains_table ? originals_.front() : table_;
}

// Of one sequence, for all of them.
Tensor CausalLm::with_positions(const Tensor& hidden) {
  const Tensor places = graph_.make(sizes_.sequence, DType::kInt64);
  const Tensor rows =
      eager::call_module(graph_, {&positions_, "wpe", {&positions_}}, places, [&](const Tensor& x) {
        return eager::embedding(graph_, x, positions_.data,
                                {.rows = job_.model.learned_positions, .width = sizes_.hidden});
      });
  return eager::add(graph_, hidden, rows);
}

// It returns no tensor with a gradient.
void CausalLm::call_rotary() {
  eager::call_module(graph_, {&shared_, "rotary_emb", {}}, Tensor{},
                     [](const Tensor&) { return Tensor{}; });
}

Tensor CausalLm::head_product(const Tensor& hidden) {
  // Its input comes back too soon for the host (OffloadActivations' hooks of an output head).
  const eager::WithHooks hooks(
      graph_, host_tensors_ == nullptr ? nullptr : std::make_shared<eager::StayingTensors>());
  const auto product = [&](const Tensor& x) {
    if (sizes_.tp > 1) {
      const Tensor given = eager::with_summed_gradient(graph_, x, divided_);
      const Tensor own =
          eager::linear(graph_, given, head().data,
                        {.inputs = sizes_.hidden, .outputs = sizes_.vocab / sizes_.tp});
      return eager::gathered_columns(graph_, own, sizes_.tp, divided_);
    }
    const eager::LinearShape shape = {.inputs = sizes_.hidden, .outputs = sizes_.vocab};
    if (job_.model.tied_embeddings) {
      return eager::linear(graph_, x, table_in_use().data, shape);
    }
    return adapters_are_off_ && job_.adapters.trains_head
               ? eager::linear(graph_, x, originals_.back().data, shape)
               : unadapted_product(graph_, head_, x);
  };
  Module module = {this, "lm_head", {&head()}};
  if (head_.bias.data.is_defined()) {
    module.parameters.push_back(&head_.bias);
  }
  return eager::call_module(graph_, module, hidden, product);
}

Tensor CausalLm::call_decoder(const Tensor& token_ids) {
  return eager::call_module(graph_, {this, "model", {}}, token_ids,
                            [&](const Tensor& x) { return decoder(x); });
}

// Without a call of the head the whole model reads its weight.
Module CausalLm::whole() {
  Module module = {.place = this, .name = eager::kWholeModel, .parameters = {}};
  if (reads_head()) {
    module.parameters.push_back(&head());
    module.reads_others = true;
  }
  return module;
}

// An adapted model is peft's model of a tuner's model of it.
Tensor CausalLm::call_whole(const Tensor& token_ids, const eager::CheckpointedFunction& run) {
  const auto inner = [&](const Tensor& x) { return eager::call_module(graph_, whole(), x, run); };
  if (trains_all_) {
    return inner(token_ids);
  }
  const auto tuner = [&](const Tensor& x) {
    return eager::call_module(graph_, {.place = this, .name = "lora_model", .parameters = {}}, x,
                              inner);
  };
  return eager::call_module(graph_, {.place = this, .name = "peft_model", .parameters = {}},
                            token_ids, tuner);
}

void CausalLm::read_head() {
  if (reads_head()) {
    eager::read_others(graph_, whole());
  }
}

}  // namespace shardplan::huggingface
