#include "kernels/gemm/gemm.h"

#include <cublasLt.h>

#include <bit>
#include <stdexcept>
#include <utility>

#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

void check_cublas(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                             cublasLtGetStatusString(status));
  }
}
#define CUBLAS_CHECK(call) check_cublas((call), #call, __FILE__, __LINE__)

cudaDataType_t data_type(GemmType type) {
  switch (type) {
    case GemmType::kFloat: return CUDA_R_32F;
    case GemmType::kBf16: return CUDA_R_16BF;
    case GemmType::kE4m3: return CUDA_R_8F_E4M3;
    case GemmType::kE5m2: return CUDA_R_8F_E5M2;
  }
  throw std::logic_error("gemm: unknown type");
}

const char* name_of(GemmType type) {
  switch (type) {
    case GemmType::kFloat: return "fp32";
    case GemmType::kBf16: return "bf16";
    case GemmType::kE4m3: return "e4m3";
    case GemmType::kE5m2: return "e5m2";
  }
  throw std::logic_error("gemm: unknown type");
}

// A row-major matrix is the column-major transpose with the same stride.
cublasLtMatrixLayout_t make_layout(GemmType type, std::int64_t stored_rows,
                                   std::int64_t stored_columns, std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, data_type(type),
                                          static_cast<std::uint64_t>(stored_columns),
                                          static_cast<std::uint64_t>(stored_rows), stride));
  return layout;
}

}  // namespace

// Column-major cuBLASLt computes out^T = op(b)^T * op(a)^T: its first matrix is b.
struct Gemm::Descriptors {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr;
  cublasLtMatrixLayout_t b = nullptr;
  cublasLtMatrixLayout_t out = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  std::size_t workspace_bytes = 0;
  float beta = 0;

  Descriptors() = default;
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    for (const cublasLtMatrixLayout_t layout : {a, b, out}) {
      if (layout != nullptr) {
        cublasLtMatrixLayoutDestroy(layout);
      }
    }
    if (operation != nullptr) {
      cublasLtMatmulDescDestroy(operation);
    }
  }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
  }

  void describe(const GemmShape& shape) {
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const bool a_turned = shape.a_layout == GemmLayout::kTransposed;
    const bool b_turned = shape.b_layout == GemmLayout::kTransposed;
    const cublasOperation_t first = b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, first);
    set(CUBLASLT_MATMUL_DESC_TRANSB, second);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(shape.sums_fast ? 1 : 0));
    a = make_layout(shape.in_type, a_turned ? shape.inner : shape.rows,
                    a_turned ? shape.rows : shape.inner, shape.a_stride);
    b = make_layout(shape.b_type.value_or(shape.in_type), b_turned ? shape.columns : shape.inner,
                    b_turned ? shape.inner : shape.columns, shape.b_stride);
    out = make_layout(shape.out_type, shape.rows, shape.columns, shape.out_stride);
  }

  // Before an algorithm is asked for: not every one takes scales.
  void scale_by(const GemmScales& scales) {
    if (scales.a != nullptr) {
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.a);
    }
    if (scales.b != nullptr) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.b);
    }
  }

  // The algorithms that cuBLASLt expects to be fastest, best first.
  std::vector<cublasLtMatmulAlgo_t> expected_fastest(int count) const {
    cublasLtMatmulPreference_t preference = nullptr;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(count));
    int found = 0;
    const cublasStatus_t set =
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_bytes, sizeof(workspace_bytes));
    const cublasStatus_t asked = cublasLtMatmulAlgoGetHeuristic(
        handle, operation, b, a, out, out, preference, count, results.data(), &found);
    CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    CUBLAS_CHECK(set);
    CUBLAS_CHECK(asked);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < found; ++i) {
      if (results[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS) {
        algorithms.push_back(results[static_cast<std::size_t>(i)].algo);
      }
    }
    if (algorithms.empty()) {
      throw std::runtime_error("cuBLASLt: found no algorithm within " +
                               std::to_string(workspace_bytes) + " bytes of workspace, expected 1");
    }
    return algorithms;
  }

  // Throws where this version of cuBLASLt cannot run it on this product.
  void use(const GemmAlgorithm& words) {
    const cublasLtMatmulAlgo_t given = std::bit_cast<cublasLtMatmulAlgo_t>(words);
    cublasLtMatmulHeuristicResult_t result = {};
    CUBLAS_CHECK(cublasLtMatmulAlgoCheck(handle, operation, b, a, out, out, &given, &result));
    if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > workspace_bytes) {
      throw std::runtime_error("cuBLASLt: an algorithm that needs " +
                               std::to_string(result.workspaceSize) + " bytes of workspace, " +
                               std::to_string(workspace_bytes) + " are there");
    }
    algorithm = given;
  }
};

namespace {

std::string layout_text(const char* matrix, GemmLayout layout, std::int64_t stride) {
  return std::string(", ") + matrix + (layout == GemmLayout::kTransposed ? " transposed " : " ") +
         std::to_string(stride);
}

std::string name_of(const GemmShape& shape, std::int64_t workspace_bytes) {
  const std::string second =
      shape.b_type ? std::string(" x ") + name_of(*shape.b_type) : std::string();
  return name_of(shape.in_type) + second + (shape.sums_fast ? ", fast" : "") + " to " +
         name_of(shape.out_type) + " " + std::to_string(shape.rows) + "x" +
         std::to_string(shape.columns) + "x" + std::to_string(shape.inner) +
         layout_text("a", shape.a_layout, shape.a_stride) +
         layout_text("b", shape.b_layout, shape.b_stride) + ", out " +
         std::to_string(shape.out_stride) +
         (shape.sum == GradientSum::kAccumulate ? ", added" : "") + ", workspace " +
         std::to_string(workspace_bytes);
}

}  // namespace

std::string GemmLibrary::version() {
  const std::size_t version = cublasLtGetVersion();  // as CUBLAS_VERSION: 130100 is 13.1.0
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

GemmLibrary::GemmLibrary(GemmChoices choices) : choices_(std::move(choices)) {
  int device = 0;
  cudaDeviceProp properties = {};
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  platform_ = std::string(properties.name) + ", cuBLAS " + version() + ", ";
  cublasLtHandle_t handle = nullptr;
  CUBLAS_CHECK(cublasLtCreate(&handle));
  handle_ = handle;
}

GemmLibrary::~GemmLibrary() {
  cublasLtDestroy(static_cast<cublasLtHandle_t>(handle_));
}

Gemm::Gemm(const GemmLibrary& library, const GemmShape& shape, std::int64_t workspace_bytes,
           const GemmScales& scales)
    : descriptors_(std::make_unique<Descriptors>()),
      name_(library.platform_ + name_of(shape, workspace_bytes)) {
  descriptors_->handle = static_cast<cublasLtHandle_t>(library.handle_);
  descriptors_->workspace_bytes = static_cast<std::size_t>(workspace_bytes);
  descriptors_->beta = shape.sum == GradientSum::kAccumulate ? 1.0F : 0.0F;
  descriptors_->describe(shape);
  descriptors_->scale_by(scales);
  const auto chosen = library.choices_.find(name_);
  is_chosen_ = chosen != library.choices_.end();
  if (is_chosen_) {
    descriptors_->use(chosen->second);
  } else {
    descriptors_->algorithm = descriptors_->expected_fastest(1).front();
  }
}

Gemm::~Gemm() = default;

std::vector<GemmAlgorithm> Gemm::candidates(int count) const {
  std::vector<GemmAlgorithm> algorithms;
  for (const cublasLtMatmulAlgo_t& algorithm : descriptors_->expected_fastest(count)) {
    algorithms.push_back(std::bit_cast<GemmAlgorithm>(algorithm));
  }
  return algorithms;
}

void Gemm::use(const GemmAlgorithm& algorithm) {
  descriptors_->use(algorithm);
}

void Gemm::run(void* out, const void* a, const void* b, void* workspace,
               cudaStream_t stream) const {
  const Descriptors& d = *descriptors_;
  const float alpha = 1;
  CUBLAS_CHECK(cublasLtMatmul(d.handle, d.operation, &alpha, b, d.b, a, d.a, &d.beta, out, d.out,
                              out, d.out, &d.algorithm, workspace, d.workspace_bytes, stream));
}

}  // namespace shardplan
