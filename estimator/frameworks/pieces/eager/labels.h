// Rows of what autograd itself makes.
#pragma once

#include "estimator/frameworks/pieces/eager/tape.h"

namespace shardplan::eager {

inline constexpr Label kWorkspaceRow = {
    .component = Component::kWorkspace,
    .name = "cublas_workspace",
    .dtype = DType::kBool,
    .formula = "one of the forward's thread, one of autograd's"};
inline constexpr Label kWeightGradientsRow = {
    .component = Component::kGradients,
    .name = "gradients.of_weights",
    .dtype = DType::kBf16,
    .formula = "of the weights, until a step has used them"};
inline constexpr Label kTableWorkspaceRow = {
    .component = Component::kTemporaries,
    .name = "gradients.table_workspace",
    .dtype = DType::kBool,
    .formula = "sums of parts of equal tokens (ATen/native/cuda/EmbeddingBackwardKernel.cu)"};
inline constexpr Label kCastRow = {.component = Component::kActivations,
                                   .name = "weights_cast",
                                   .dtype = DType::kBf16,
                                   .formula = "N of products: autocast's copies of fp32 weights",
                                   .of_gradients = &kWeightGradientsRow};

inline constexpr Label kGatheredPartsRow = {
    .component = Component::kCommunication,
    .name = "tensor_parallel.gathered",
    .dtype = DType::kBf16,
    .formula = "of all ranks, one behind the other: V*T of logits"};
inline constexpr Label kExpertExchangeRow = {
    .component = Component::kCommunication,
    .name = "experts.received_tokens",
    .dtype = DType::kBf16,
    .formula = "h*T*e*p: tokens with an expert here, p of all, their choices, or their gradients"};
inline constexpr Label kRingExchangeRow = {
    .component = Component::kCommunication,
    .name = "context_parallel.exchange",
    .dtype = DType::kBf16,
    .formula = "2k*d*T/c: keys and values of a rank, of all, and their gradients in fp32"};
inline constexpr Label kBroughtBackRow = {
    .component = Component::kTemporaries,
    .name = "activations.from_host",
    .dtype = DType::kBf16,
    .formula = "saved tensors of the host, of one operator and the one before it"};
inline constexpr Label kLaidOutRow = {
    .component = Component::kTemporaries,
    .name = "activations.to_host",
    .dtype = DType::kBf16,
    .formula = "copies of saved tensors that lie otherwise, until they are on the host"};

}  // namespace shardplan::eager
