// The rows' texts. Sources: those of the code that makes the tensors (flat.cpp,
// partitioned.cpp, llama.cpp).
#include "estimator/frameworks/deepspeed/tape.h"

#include <array>

namespace shardplan::deepspeed {
namespace {

using enum Component;
using enum DType;

constexpr auto kTexts = std::to_array<eager::Label>({
    {kParameters, "start_up.model", kBf16, "the model's own tensors, until they are flattened"},
    {kParameters, "parameters", kBf16,
     "N (N/S under ZeRO-3): one flat bit16 tensor, parameters are views"},
    {kParameters, "gathered_parameters", kBf16,
     "of modules that run, were asked for ahead, or are kept for what follows"},
    {kCommunication, "gather_buffer", kBf16,
     "of several parameters at once, until each is copied out"},
    {kOptimizer, "optimizer.fp32_partition", kFp32, "N/S: clone of this rank's partition in fp32"},
    {kTemporaries, "start_up.copies", kFp32,
     "N/S: of the partition, and the gradient of an empty step"},
    {kOptimizer, "optimizer.exp_avg", kFp32, "N/S: of AdamW, made by its first step", nullptr,
     true},
    {kOptimizer, "optimizer.exp_avg_sq", kFp32, "N/S: of AdamW, made by its first step", nullptr,
     true},
    {kOptimizer, "optimizer.step", kFp32, "1: how many steps AdamW has made", nullptr, true},
    {kOptimizer, "optimizer.scales", kFp32,
     "of moments of 8 bits: one of every 256 elements, and their values", nullptr, true},
    {kGradients, "gradients", kBf16, "N/S: grad_partitions_flat_buffer"},
    {kGradients, "gradients.of_weights", kBf16,
     "of the weights: until they are copied into the bucket or reduced, before in .grad"},
    {kGradients, "gradients.partition", kBf16,
     "whole tensors that this rank's N/S reaches into: averaged_gradients"},
    {kCommunication, "reduce_bucket", kBf16, "R, twice with overlap_comm: contiguous ipg buffers"},
    {kCommunication, "reduce_bucket.flat_copy", kBf16,
     "of what is reduced: runs of several ranks, at most R or a larger tensor"},
    {kGradients, "gradients.offload_buffer", kBf16,
     "of the largest tensor: where accumulated gradients come back from the host"},
    {kCommunication, "offload.on_its_way", kBf16,
     "of one tensor's N/S: parameters from the host before they are gathered, gradients to it"},
    {kTemporaries, "step.overflow_check", kBool,
     "of one tensor's part: an fp32 copy, masks of either kind and of both, and those in fp32"},
    {kTemporaries, "step.norms", kBool, "8 bytes of one tensor's part: its norm in fp64"},
    {kTemporaries, "step.flat_gradients", kBf16,
     "N/S (ZeRO-3: a sub-group): flatten(averaged_gradients)"},
    {kTemporaries, "step.fp32_gradients", kFp32, "N/S (ZeRO-3: a sub-group): gradients in fp32"},
    {kTemporaries, "step.square_roots", kFp32, "a sub-group: of exp_avg_sq, in AdamW not fused"},
    {kWorkspace, "cublas_workspace", kBool, "one of the forward's thread, one of autograd's"},
    {kActivations, "tokens", kInt64, "T: token ids, attention mask and labels"},
    {kActivations, "rotary_embedding", kBf16, "s*d: cosines and sines, and what they are made of"},
    {kActivations, "layer.residual", kBf16,
     "h*T: residual stream, and inputs of recomputed layers"},
    {kActivations, "layer.norm_fp32", kFp32,
     "h*T (a*d*T, k*d*T of norms of heads): input, its square and the product with the root"},
    {kActivations, "layer.norm_output", kBf16, "h*T: normed value and output"},
    {kActivations, "layer.attention", kBf16,
     "a*d*T, k*d*T: projections, q and k after the rotary embedding, v, the output; h*T"},
    {kActivations, "layer.attention_log_sum_exp", kFp32, "a*T"},
    {kActivations, "layer.ffn", kBf16, "f*T: gate, silu(gate), up and their product; h*T"},
    {kActivations, "head.logits", kBf16, "V*T: part of the model's output until the loss returns"},
    {kActivations, "head.logits_fp32", kFp32, "V*T: logits, and the log-softmax that is saved"},
    {kTemporaries, "layer.residual_gradient", kBf16, "h*T"},
    {kTemporaries, "layer.norm_gradients_fp32", kFp32,
     "h*T (a*d*T, k*d*T of norms of heads): of input, root and square, and their factors"},
    {kTemporaries, "layer.norm_gradients", kBf16, "h*T: of the normed value, of the input"},
    {kTemporaries, "layer.attention_gradients", kBf16,
     "a*d*T, k*d*T: of output, q, k and v, of k and v for every query head; h*T"},
    {kTemporaries, "layer.attention_gradients_fp32", kFp32, "a*d*T: dQ; a*T: sums of the softmax"},
    {kTemporaries, "layer.ffn_gradients", kBf16, "f*T: of product, up, silu and gate; h*T"},
    {kTemporaries, "head.logits_gradient", kBf16,
     "V*T: cast back (0.18.3 to 0.19.5: and divided by microbatches); h*T"},
    {kTemporaries, "head.logits_gradients_fp32", kFp32, "V*T: of the log-softmax and the logits"},
    {kTemporaries, "embedding.gradient_workspace", kBool, "of the sorted token ids"},
    {kActivations, "head.logits_chunk", kBf16, "V*C: of a chunk of tokens, then their gradient"},
    {kTemporaries, "head.losses", kBool, "5*T: losses in fp32, and which tokens count"},
    {kTemporaries, "head.hidden_gradient", kBf16, "h*T: made with the loss"},
    {kTemporaries, "head.weight_gradient_fp32", kFp32, "V*h: of one chunk, until it is added"},
    {kTemporaries, "layer.norm_gradient_parts", kFp32,
     "h (d of norms of heads): one sum a multiprocessor, and theirs"},
});
static_assert(kTexts.size() == static_cast<std::size_t>(TapeRow::kNormGradientParts) + 1);

}  // namespace

const eager::Label& text_of(TapeRow row) {
  return kTexts[static_cast<std::size_t>(row)];
}

}  // namespace shardplan::deepspeed
