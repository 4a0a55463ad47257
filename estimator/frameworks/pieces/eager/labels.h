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

}  // namespace shardplan::eager
