// The rows of a rank's ledger. Letters: N parameters, Nt trained ones, D ranks that share them;
// those of activations in ledger/block_rows.h.
#pragma once

#include "estimator/frameworks/pieces/data_parallel.h"
#include "estimator/frameworks/pieces/eager/tape.h"

namespace shardplan::huggingface {

using eager::Label;
using enum Component;

inline constexpr Label kParametersRow = {kParameters, "parameters", DType::kBf16,
                                         "N: weights as they were loaded"};
inline constexpr Label kBuffersRow = {kParameters, "buffers", DType::kBf16,
                                      "of modules: numbers that nothing trains"};
inline constexpr Label kQuantizedRow = {
    kParameters, "parameters.quantized", DType::kBool,
    "frozen linear weights, packed, with scales of their blocks"};
inline constexpr Label kReferenceRow = {kParameters, "reference_model", DType::kBf16,
                                        "N: weights of a second model, which nothing trains"};
inline constexpr Label kTowerRow = {
    kParameters, "vision_tower", DType::kBf16,
    "of the tower for pictures or sound, which no batch of text reaches"};
inline constexpr Label kAdapterRow = {kParameters, "adapters", DType::kFp32,
                                      "Nt: A and B of every adapter"};
inline constexpr Label kBucketRow = {kCommunication, kBucketsRow, DType::kFp32, kBucketsFormula};
inline constexpr Label kShardRow = {kParameters, "parameters.shards", DType::kFp32, "N/D"};
inline constexpr Label kGatheredRow = {kParameters, "parameters.gathered", DType::kBf16,
                                       "of a group, whole"};
inline constexpr Label kGatherBufferRow = {kCommunication, "parameters.gather_buffer", DType::kBf16,
                                           "of a group, and this rank's part of it"};
inline constexpr Label kReduceBufferRow = {kCommunication, "gradients.reduce_buffer", DType::kBf16,
                                           "of a group, and this rank's part of it"};
inline constexpr Label kGradientsRow = {kGradients, "gradients", DType::kFp32,
                                        "Nt/D: what the optimizer reads"};
inline constexpr Label kExpAvgRow = {
    kOptimizer, "optimizer.exp_avg", DType::kFp32, "Nt/D: made by the first step", nullptr, true};
inline constexpr Label kExpAvgSqRow = {kOptimizer,   "optimizer.exp_avg_sq",
                                       DType::kFp32, "Nt/D: made by the first step",
                                       nullptr,      true};
inline constexpr Label kStepRow = {kOptimizer,   "optimizer.step",
                                   DType::kFp32, "1 of every tensor: how many steps it has made",
                                   nullptr,      true};
inline constexpr Label kScalesRow = {kOptimizer,   "optimizer.scales",
                                     DType::kFp32, "one of every 256 elements of both moments",
                                     nullptr,      true};
inline constexpr Label kUpdateRow = {kTemporaries, "optimizer.temporaries", DType::kFp32,
                                     "of the optimizer's step"};

inline constexpr Label kTuningRow = {kTemporaries, "kernel_tuning", DType::kBool,
                                     "256 MiB that Triton clears while it times a kernel"};

inline constexpr Label kTokensRow = {kActivations, "tokens", DType::kInt64,
                                     "T: token ids, attention mask and labels"};
inline constexpr Label kRotaryRow = {kActivations, "rotary_embedding", DType::kBf16,
                                     "s*d: cosines and sines, and what they are made of"};
inline constexpr Label kMaskRow = {kActivations, "attention_mask", DType::kBool,
                                   "s*T: a byte for each pair of positions; added, in their type"};
inline constexpr Label kResidualGradientRow = {kTemporaries, "layer.residual_gradient",
                                               DType::kBf16, "h*T"};
inline constexpr Label kResidualRow = {kActivations, "layer.residual", DType::kBf16,
                                       "h*T: residual stream, and inputs of recomputed layers",
                                       &kResidualGradientRow};
inline constexpr Label kNormGradientRow = {
    kTemporaries, "layer.norm_gradients", DType::kFp32,
    "h*T (a*d*T, k*d*T of norms of heads): of input, root and square, and their factors"};
inline constexpr Label kNormRow = {
    kActivations, "layer.norm", DType::kFp32,
    "h*T (a*d*T, k*d*T of norms of heads): input in fp32, normed value and output",
    &kNormGradientRow};
inline constexpr Label kDequantizedRow = {kTemporaries, "weights_dequantized", DType::kBf16,
                                          "one weight at a time"};
inline constexpr Label kFakeQuantizedGradientRow = {
    kTemporaries, "weights_fake_quantized.gradients", DType::kFp32, "of a linear layer's weights"};
inline constexpr Label kFakeQuantizedRow = {
    kActivations, "weights_fake_quantized", DType::kFp32,
    "N of products: in fp32 four times, and rounded in the products' type",
    &kFakeQuantizedGradientRow};
inline constexpr Label kAttentionGradientRow = {
    kTemporaries, "layer.attention_gradients", DType::kBf16,
    "a*d*T, k*d*T: of projections, their rotation and the kernel's own"};
inline constexpr Label kAttentionRow = {
    kActivations, "layer.attention", DType::kBf16,
    "a*d*T, k*d*T: projections, q and k after the rotary embedding, v, output, sums",
    &kAttentionGradientRow};
inline constexpr Label kRecurrenceGradientRow = {kTemporaries, "layer.recurrence_gradients",
                                                 DType::kFp32, "of chunks, states and projections"};
inline constexpr Label kRecurrenceRow = {
    kActivations, "layer.recurrence", DType::kFp32,
    "projections, their convolution, and what chunks of tokens and states are made of",
    &kRecurrenceGradientRow};
inline constexpr Label kFfnGradientRow = {kTemporaries, "layer.ffn_gradients", DType::kBf16,
                                          "f*T, h*T"};
inline constexpr Label kFfnRow = {kActivations, "layer.ffn", DType::kBf16,
                                  "f*T: gate, its activation, up and their product; h*T",
                                  &kFfnGradientRow};
inline constexpr Label kAdapterGradientRow = {kTemporaries, "adapter.gradients", DType::kBf16,
                                              "of adapters' inputs and inner products"};
inline constexpr Label kAdapterActivationRow = {
    kActivations, "adapter.activations", DType::kBf16,
    "inputs of adapters in the type of their products, and r*T", &kAdapterGradientRow};
inline constexpr Label kLogitsGradientRow = {kTemporaries, "head.logits_gradients", DType::kFp32,
                                             "V*T: of the log-softmax and of the logits"};
inline constexpr Label kLogitsRow = {
    kActivations, "head.logits", DType::kFp32,
    "V*T: logits, in fp32 for the loss, and the log-softmax that is saved", &kLogitsGradientRow};

}  // namespace shardplan::huggingface
