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

void orthogonalize_by_operators(eager::Graph& graph, Tensor& matrix, SquareMatrices& squares,
                                std::int64_t small) {
  const std::int64_t elements = matrix.elements;
  const auto make_square = [&] { return graph.make_product(small * small, DType::kBf16); };
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    squares.gram = make_square();
    {
      const Tensor scaled = make_square();
      const Tensor scaled_again = make_square();
      const Tensor product = make_square();
      squares.polynomial = make_square();
    }
    const Tensor scaled = graph.make(elements, DType::kBf16);
    const Tensor product = graph.make_product(elements, DType::kBf16);
    matrix = graph.make(elements, DType::kBf16);
  }
}

void play_moonshot_muon(eager::Graph& graph, const eager::Parameter& matrix, std::int64_t held,
                        Tensor& last) {
  const std::int64_t elements = matrix.data.elements;
  const std::int64_t small = std::min(matrix.rows, elements / matrix.rows);
  const Tensor update = graph.make(held, matrix.dtype);
  const Tensor whole = graph.make(held < elements ? elements : 0, matrix.dtype);
  Tensor orthogonal;
  {
    const Tensor narrow = graph.make(matrix.dtype == DType::kBf16 ? 0 : elements, DType::kBf16);
    orthogonal = graph.make(elements, DType::kBf16);
  }
  SquareMatrices squares;
  orthogonalize_by_operators(graph, orthogonal, squares, small);
  last = held < elements ? graph.make(held, DType::kBf16) : orthogonal;
}

// The square of the gradient, then the root of the second moment, its sum and the update.
void play_moonshot_adamw(eager::Graph& graph, const eager::Parameter& parameter, std::int64_t held,
                         Tensor& last) {
  last = {};
  { const Tensor square = graph.make(held, parameter.dtype); }
  Tensor sum;
  {
    const Tensor root = graph.make(held, parameter.dtype);
    sum = graph.make(held, parameter.dtype);
  }
  last = graph.make(held, parameter.dtype);
}

double muon_elements(const Job& job) {
  if (job.adapters.rank > 0) {
    return number(huggingface::adapter_elements(job));
  }
  double elements = 0;
  for (const LinearWeight& weight : linear_weights(job.model, {})) {
    elements += number(job.model.num_layers() * weight.elements());
  }
  return elements;
}

double muon_s(const Job& job, const Plan& plan) {
  const GpuSpec& gpu = job.cluster.gpu;
  const double e = optimizer_element_bytes(job, plan);
  const auto matrix_s = [&](std::int64_t rows, std::int64_t columns) {
    const double small = number(std::min(rows, columns));
    return newton_schulz_s(gpu, rows, columns) +
           elementwise_s(gpu, matrix_kernels(number(rows * columns), small * small, e));
  };
  double layer_s = 0;
  for (const LinearWeight& weight : linear_weights(job.model, {})) {
    if (job.adapters.rank == 0) {
      layer_s += matrix_s(weight.outputs, weight.inputs);
    } else if (huggingface::has_adapter(job, weight.place)) {
      layer_s +=
          matrix_s(job.adapters.rank, weight.inputs) + matrix_s(weight.outputs, job.adapters.rank);
    }
  }
  return number(job.model.num_layers()) * layer_s;
}

}  // namespace shardplan::transformers
