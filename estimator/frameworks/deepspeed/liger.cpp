#include "estimator/frameworks/deepspeed/liger.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "estimator/ledger/block_rows.h"
#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
namespace {

constexpr std::int64_t kWiden = 2;  // fp32 for bf16
constexpr std::int64_t kFp32 = 4;

}  // namespace

// triton.next_power_of_2; a chunk has no more than all tokens.
std::int64_t liger_chunk_tokens(std::int64_t tokens, const ModelSpec& model) {
  const std::int64_t share = div_ceil(tokens, div_ceil(model.vocab, model.hidden));
  const auto rounded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(share)));
  return std::min(tokens, rounded);
}

LigerLlama::LigerLlama(const Job& job, const LlamaSizes& sizes, bool checkpoints,
                       eager::Tape& tape, DeepspeedZero& hooks)
    : EagerLlama(sizes, checkpoints, tape, hooks),
      tokens_(sizes.norm.statistics / kFp32),
      chunk_tokens_(liger_chunk_tokens(tokens_, job.model)),
      multiprocessors_(job.cluster.gpu.num_sms),
      is_through_082_(job.profile.liger_kernel == LigerKernel::kThrough082) {}

ModuleCall LigerLlama::call(Module module, std::int64_t layer) const {
  ModuleCall found = EagerLlama::call(module, layer);
  if (module == Module::kCausalLm) {
    found.parameter = EagerLlama::call(Module::kHead).parameter;
    found.is_external = true;
  }
  return found;
}

// Up to 0.8.4 a model that is there already keeps its norms of heads (transformers/monkey_patch.py,
// apply_liger_kernel_to_qwen3).
bool LigerLlama::keeps_plain(const ModuleCall& norm) const {
  return is_through_082_ && (norm.module == Module::kQueryNorm || norm.module == Module::kKeyNorm);
}

// Saves its input and the reciprocal root in fp32 of every row.
void LigerLlama::norm_forward(const ModuleCall& norm, LlamaNorm& tensors, TapeTensor& input,
                              bool saves) {
  if (keeps_plain(norm)) {
    return EagerLlama::norm_forward(norm, tensors, input, saves);
  }
  hooks_.before_forward(norm);
  tensors.output = make_as(tape_, TapeRow::kNorm, sizes_of(norm).input);
  tensors.root = make_as(tape_, TapeRow::kWideNorm, sizes_of(norm).statistics);
  if (saves) {
    tensors.input = std::exchange(input, {});
  } else {
    tape_.free(tensors.root);
  }
  hooks_.after_forward(norm);
}

// The input's gradient is written over the output's; the weight's is summed over rows by each
// multiprocessor, then over those.
TapeTensor LigerLlama::norm_backward(const ModuleCall& norm, LlamaNorm& tensors,
                                     TapeTensor& of_output) {
  if (keeps_plain(norm)) {
    return EagerLlama::norm_backward(norm, tensors, of_output);
  }
  const InRow row(tape_, TapeRow::kNormGradientParts);
  const std::int64_t columns = sizes_of(norm).column_sums;
  hooks_.before_backward(norm);
  TapeTensor parts = tape_.make(multiprocessors_ * columns);
  TapeTensor sum = tape_.make(columns);
  const TapeTensor of_weight = make_as(tape_, TapeRow::kWeightGradients, parameter_bytes(norm));
  tape_.free(sum, parts, tensors.input, tensors.root);
  hooks_.take(norm.parameter, of_weight);
  hooks_.after_backward(norm);
  return std::exchange(of_output, {});
}

// In place, either way.
void LigerLlama::turn(TapeTensor& query, TapeTensor& key, LlamaLayer& layer) {
  layer.query = std::exchange(query, {});
  layer.key = std::exchange(key, {});
}

// Gradients of up and gate are written over them.
TapeTensor LigerLlama::up_gradient(LlamaLayer& layer, TapeTensor& of_product) {
  tape_.free(of_product);
  return std::exchange(layer.up, {});
}
TapeTensor LigerLlama::gate_gradient(std::int64_t, LlamaLayer& layer) {
  return std::exchange(layer.gate, {});
}

// One buffer of logits, over which their gradient is written; products add up where they belong.
void LigerLlama::all_chunks() {
  TapeTensor logits = make_as(tape_, TapeRow::kLogitsChunk, sizes_.logits / tokens_ * chunk_tokens_);
  tape_.free(logits);
}

// A chunk's logits stay until the next one's have become their gradient; the product for the
// weight becomes fp32 before it is added.
void LigerLlama::chunk_by_chunk() {
  const std::int64_t table = of_head_.bytes;
  TapeTensor before;
  for (std::int64_t first = 0; first < tokens_; first += chunk_tokens_) {
    const std::int64_t tokens = std::min(chunk_tokens_, tokens_ - first);
    TapeTensor logits = make_as(tape_, TapeRow::kLogitsChunk, sizes_.logits / tokens_ * tokens);
    tape_.free(before);
    TapeTensor hidden = make_as(tape_, TapeRow::kHiddenGradient, sizes_.sequence / tokens_ * tokens);
    tape_.free(hidden);
    TapeTensor product = make_as(tape_, TapeRow::kWeightGradients, table);
    TapeTensor wide = make_as(tape_, TapeRow::kWideHeadGradient, kWiden * table);
    tape_.free(product, wide);
    before = logits;
  }
  tape_.free(before);
}

// Gradients are made here, and wait for the backward pass, the head's weight's among them.
// LigerForCausalLMLoss shifts labels by padding.
void LigerLlama::loss_forward() {
  hooks_.read_external(call(Module::kCausalLm));
  TapeTensor padded = make_as(tape_, TapeRow::kTokens, sizes_.token_ids);
  labels_ = make_as(tape_, TapeRow::kTokens, sizes_.token_ids);
  of_hidden_ = make_as(tape_, TapeRow::kHiddenGradient, sizes_.sequence);
  of_head_ = make_as(tape_, TapeRow::kWeightGradients, parameter_bytes(call(Module::kHead)));
  TapeTensor losses = make_as(tape_, TapeRow::kTokenLosses, kFp32 * tokens_);
  TapeTensor counts = make_as(tape_, TapeRow::kTokenLosses, tokens_);
  is_through_082_ ? chunk_by_chunk() : all_chunks();
  tape_.free(losses, counts, padded, labels_, final_norm_.output);
  hooks_.after_forward(call(Module::kCausalLm));
}

TapeTensor LigerLlama::loss_backward() {
  take_gradient(call(Module::kHead), std::exchange(of_head_, {}));
  return std::exchange(of_hidden_, {});
}

}  // namespace shardplan::deepspeed
