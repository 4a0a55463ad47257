#include "estimator/frameworks/transformers/muon.h"

#include <algorithm>

#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/frameworks/pieces/newton_schulz.h"
#include "estimator/plan/number.h"
#include "estimator/time/elementwise.h"
#include "estimator/time/kernel_time.h"

namespace shardplan::transformers {
namespace {

using eager::Tensor;
using huggingface::linear_weights;
using huggingface::LinearWeight;
using huggingface::optimizer_element_bytes;

// Per element of a matrix of e bytes: the gradient for its norm, scaled, and both interpolations 1
// + 2 + 3 + 3, to bf16 e + 2, norm 2, divided 4, in every step the copy that a product adds to 4
// and its reading 2, decay 2, update 2 and 2; of the square matrix in every step the copy 4 and 2.
KernelBytes matrix_kernels(double elements, double square, double e) {
  return {.streamed = elements * ((9 + 2 + 2) * e + 2 + 4 + 2 + 6 * kNewtonSchulzSteps) +
                      square * 6 * kNewtonSchulzSteps,
          .converted = elements * (e + 2)};
}

}  // namespace

bool is_for_muon(const eager::Parameter& parameter) {
  return parameter.rows != parameter.data.elements && !parameter.is_end;
}

void play_muon(eager::Graph& graph, const eager::Parameter& matrix, Tensor& last) {
  const std::int64_t elements = matrix.data.elements;
  const std::int64_t small = std::min(matrix.rows, elements / matrix.rows);
  const Tensor update = graph.make(elements, matrix.dtype);
  last = {};
  Tensor orthogonal = update;
  if (matrix.dtype != DType::kBf16) {
    orthogonal = graph.make(elements, DType::kBf16);
  }
  Tensor gram, changed;
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    gram = graph.make_product(small * small, DType::kBf16);
    changed = graph.make_product(small * small, DType::kBf16);
    orthogonal = graph.make_product(elements, DType::kBf16);
  }
  last = orthogonal;
}

double muon_elements(const Job& job) {
  double elements = 0;
  for (const LinearWeight& weight : linear_weights(job.model, {})) {
    elements += number(job.model.num_layers() * weight.elements());
  }
  return elements;
}

double muon_s(const Job& job, const Plan& plan) {
  const GpuSpec& gpu = job.cluster.gpu;
  const double e = optimizer_element_bytes(job, plan);
  double layer_s = 0;
  for (const LinearWeight& weight : linear_weights(job.model, {})) {
    const double small = number(std::min(weight.inputs, weight.outputs));
    layer_s += newton_schulz_s(gpu, weight.outputs, weight.inputs) +
               elementwise_s(gpu, matrix_kernels(number(weight.elements()), small * small, e));
  }
  return number(job.model.num_layers()) * layer_s;
}

}  // namespace shardplan::transformers
