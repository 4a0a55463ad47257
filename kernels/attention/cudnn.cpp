#include "kernels/attention/cudnn.h"

#include <cuda_bf16.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "kernels/gemm/transpose.h"
#include "kernels/pointwise/convert.h"

// The frontend finds cuDNN's functions through this handle, at their first call.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace shardplan {
namespace {

namespace fe = cudnn_frontend;
using Bf16 = __nv_bfloat16;
using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Uid : std::int64_t { kQ = 1, kK, kV, kO, kStats, kDout, kDq, kDk, kDv };

constexpr std::int64_t kAlignment = 256;

// Where the program has its library: the one named by the variable, the loader's, the one that was
// there when this was built. The reason of the first that fails is the one to show.
bool load_library(std::string& why_not) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (fe::cudnn_dlhandle != nullptr) {
    return true;
  }
  const char* named = std::getenv("SHARDPLAN_CUDNN");
  const std::array<const char*, 2> places = {named != nullptr ? named : "libcudnn.so.9",
                                             named != nullptr ? nullptr : SHARDPLAN_CUDNN_LIBRARY};
  for (const char* place : places) {
    if (place != nullptr && fe::cudnn_dlhandle == nullptr) {
      fe::cudnn_dlhandle = dlopen(place, RTLD_NOW | RTLD_LOCAL);
      if (fe::cudnn_dlhandle == nullptr && why_not.empty()) {
        why_not = std::string("no cuDNN: ") + dlerror() +
                  " (SHARDPLAN_CUDNN may name the file libcudnn.so.9)";
      }
    }
  }
  return fe::cudnn_dlhandle != nullptr;
}

class Handle {
 public:
  Handle() {
    const cudnnStatus_t status = fe::detail::create_handle(&handle_);
    if (status != CUDNN_STATUS_SUCCESS) {
      throw std::runtime_error(std::string("cudnnCreate: ") + fe::detail::get_error_string(status));
    }
  }
  ~Handle() { fe::detail::destroy_handle(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cudnnHandle_t get() const { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
};

void check(fe::error_t error, const char* what) {
  if (error.is_bad()) {
    throw std::runtime_error(std::string(what) + ": " + error.get_message());
  }
}

// How the log-sum-exp lies for cuDNN: as the program has it, or by head, which is turned around.
enum class StatsLayout { kByRow, kByHead };

// The tensors of a shape, as cuDNN names dimensions: [batch, heads, length, head_dim].
class Tensors {
 public:
  Tensors(const AttentionShape& shape, StatsLayout layout) : shape_(shape), layout_(layout) {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  fe::graph::Tensor_attributes queries(Uid uid, std::int64_t stride) const {
    return rows(uid, shape_.heads, shape_.query_length, stride);
  }
  fe::graph::Tensor_attributes keys(Uid uid, std::int64_t stride) const {
    return rows(uid, shape_.kv_heads, shape_.key_length, stride);
  }
  fe::graph::Tensor_attributes stats() const {
    const std::int64_t length = shape_.query_length;
    const bool by_row = layout_ == StatsLayout::kByRow;
    return fe::graph::Tensor_attributes()
        .set_uid(kStats)
        .set_name("log_sum_exp")
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({shape_.batch, shape_.heads, length, 1})
        .set_stride({shape_.heads * length, by_row ? 1 : length, by_row ? shape_.heads : 1, 1});
  }
  // An output that the frontend made gets the place that `like` describes.
  static void place(const TensorPointer& output, const fe::graph::Tensor_attributes& like) {
    output->set_output(true)
        .set_uid(like.get_uid())
        .set_data_type(like.get_data_type())
        .set_dim(like.get_dim())
        .set_stride(like.get_stride());
  }
  template <class Attributes>
  void mask(Attributes& attributes) const {
    attributes.set_attn_scale(1.0F / std::sqrt(static_cast<float>(shape_.head_dim)));
    const CudnnMask kind = mask_of(shape_);
    if (kind == CudnnMask::kNone) {
      return;
    }
    attributes
        .set_diagonal_alignment(kind == CudnnMask::kTopLeft ? fe::DiagonalAlignment_t::TOP_LEFT
                                                            : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
    if (window_of(shape_) > 0) {
      attributes.set_diagonal_band_left_bound(static_cast<int>(window_of(shape_)));
    }
  }

  fe::graph::Graph graph;

 private:
  fe::graph::Tensor_attributes rows(Uid uid, std::int64_t heads, std::int64_t length,
                                    std::int64_t stride) const {
    return fe::graph::Tensor_attributes()
        .set_uid(uid)
        .set_name("tensor" + std::to_string(uid))
        .set_data_type(fe::DataType_t::BFLOAT16)
        .set_dim({shape_.batch, heads, length, shape_.head_dim})
        .set_stride({length * stride, shape_.head_dim, stride, 1});
  }

  const AttentionShape shape_;
  StatsLayout layout_;
};

class FrontendGraph : public CudnnGraph {
 public:
  FrontendGraph(std::shared_ptr<Handle> handle, const AttentionShape& shape, StatsLayout layout)
      : handle_(std::move(handle)), shape_(shape), layout_(layout), tensors_(shape, layout) {}

  void describe_forward() {
    const TensorPointer q = tensors_.graph.tensor(tensors_.queries(kQ, shape_.q_stride));
    const TensorPointer k = tensors_.graph.tensor(tensors_.keys(kK, shape_.kv_stride));
    const TensorPointer v = tensors_.graph.tensor(tensors_.keys(kV, shape_.kv_stride));
    auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    tensors_.mask(attributes);
    const auto outputs = tensors_.graph.sdpa(q, k, v, attributes);
    Tensors::place(outputs[0], tensors_.queries(kO, shape_.o_stride));
    Tensors::place(outputs[1], tensors_.stats());
    build();
  }

  void describe_backward(const AttentionGradientShape& gradients, bool repeatable) {
    gradients_ = gradients;
    const TensorPointer q = tensors_.graph.tensor(tensors_.queries(kQ, shape_.q_stride));
    const TensorPointer k = tensors_.graph.tensor(tensors_.keys(kK, shape_.kv_stride));
    const TensorPointer v = tensors_.graph.tensor(tensors_.keys(kV, shape_.kv_stride));
    const TensorPointer o = tensors_.graph.tensor(tensors_.queries(kO, shape_.o_stride));
    const TensorPointer dout = tensors_.graph.tensor(tensors_.queries(kDout, shape_.o_stride));
    const TensorPointer stats = tensors_.graph.tensor(tensors_.stats());
    auto attributes = fe::graph::SDPA_backward_attributes()
                          .set_name("attention_backward")
                          .set_deterministic_algorithm(repeatable);
    tensors_.mask(attributes);
    const auto outputs = tensors_.graph.sdpa_backward(q, k, v, o, dout, stats, attributes);
    const std::int64_t dkv_stride = adds() ? 2 * kv_width() : gradients.dkv_stride;
    Tensors::place(outputs[0], tensors_.queries(kDq, gradients.dq_stride));
    Tensors::place(outputs[1], tensors_.keys(kDk, dkv_stride));
    Tensors::place(outputs[2], tensors_.keys(kDv, dkv_stride));
    build();
  }

  std::int64_t workspace_bytes() const override {
    const std::int64_t behind = rounded(stats_bytes()) + part_bytes();
    return behind == 0 ? own_bytes_ : rounded(own_bytes_) + behind;
  }

  void forward(void* o, float* lse, const void* q, const void* k, const void* v, void* workspace,
               cudaStream_t stream) const override {
    float* stats = layout_ == StatsLayout::kByRow ? lse : stats_in(workspace);
    run({{kQ, writable(q)}, {kK, writable(k)}, {kV, writable(v)}, {kO, o}, {kStats, stats}},
        workspace, stream);
    if (layout_ == StatsLayout::kByHead) {
      transpose(lse, stats, shape_.batch, shape_.heads, shape_.query_length, stream);
    }
  }

  void backward(void* dq, void* dk, void* dv, const void* dout, const void* q, const void* k,
                const void* v, const void* o, const float* lse, void* workspace,
                cudaStream_t stream) const override {
    void* stats = writable(lse);
    if (layout_ == StatsLayout::kByHead) {
      transpose(stats_in(workspace), lse, shape_.batch, shape_.query_length, shape_.heads, stream);
      stats = stats_in(workspace);
    }
    Bf16* part = reinterpret_cast<Bf16*>(static_cast<char*>(workspace) + rounded(own_bytes_) +
                                         rounded(stats_bytes()));
    run({{kQ, writable(q)},
         {kK, writable(k)},
         {kV, writable(v)},
         {kO, writable(o)},
         {kDout, writable(dout)},
         {kStats, stats},
         {kDq, dq},
         {kDk, adds() ? part : dk},
         {kDv, adds() ? part + kv_width() : dv}},
        workspace, stream);
    if (adds()) {
      const std::int64_t rows = shape_.batch * shape_.key_length;
      for (const auto& [sum, one] : {std::pair{dk, part}, std::pair{dv, part + kv_width()}}) {
        add_rows(static_cast<Bf16*>(sum), gradients_.dkv_stride, one, 2 * kv_width(), rows,
                 kv_width(), stream);
      }
    }
  }

 private:
  // The frontend takes inputs as it takes outputs.
  static void* writable(const void* pointer) { return const_cast<void*>(pointer); }
  static std::int64_t rounded(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::int64_t kv_width() const { return shape_.kv_heads * shape_.head_dim; }
  bool adds() const { return gradients_.dkv_sum == GradientSum::kAccumulate; }
  // Behind cuDNN's own workspace: the log-sum-exp by head, then the gradients of this call alone.
  std::int64_t stats_bytes() const {
    return layout_ == StatsLayout::kByRow ? 0
                                          : 4 * shape_.batch * shape_.heads * shape_.query_length;
  }
  std::int64_t part_bytes() const {
    return adds() ? 4 * shape_.batch * shape_.key_length * kv_width() : 0;
  }
  float* stats_in(void* workspace) const {
    return reinterpret_cast<float*>(static_cast<char*>(workspace) + rounded(own_bytes_));
  }

  void build() {
    check(tensors_.graph.build(handle_->get(), {fe::HeurMode_t::A}), "cuDNN");
    check(tensors_.graph.get_workspace_size(own_bytes_), "cuDNN");
  }

  void run(std::unordered_map<std::int64_t, void*> pointers, void* workspace,
           cudaStream_t stream) const {
    const cudnnStatus_t status = fe::detail::set_stream(handle_->get(), stream);
    if (status != CUDNN_STATUS_SUCCESS) {
      throw std::runtime_error(std::string("cudnnSetStream: ") +
                               fe::detail::get_error_string(status));
    }
    check(tensors_.graph.execute(handle_->get(), pointers, workspace), "cuDNN");
  }

  std::shared_ptr<Handle> handle_;
  AttentionShape shape_;
  AttentionGradientShape gradients_ = {};
  StatsLayout layout_;
  Tensors tensors_;
  std::int64_t own_bytes_ = 0;
};

using Key = std::array<std::int64_t, 17>;

Key key_of(const AttentionShape& s, const AttentionGradientShape& g, std::int64_t kind) {
  return {kind,
          s.batch,
          s.query_length,
          s.key_length,
          s.heads,
          s.kv_heads,
          s.head_dim,
          static_cast<std::int64_t>(mask_of(s)),
          window_of(s),
          s.q_stride,
          s.kv_stride,
          s.o_stride,
          g.dq_stride,
          g.dkv_stride,
          static_cast<std::int64_t>(g.dkv_sum),
          s.query_position,
          s.window};
}

class Frontend : public CudnnAttention {
 public:
  std::string version() const override {
    const std::size_t version = fe::detail::get_backend_version();  // as CUDNN_VERSION of 9
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
  }

  CudnnAnswer forward(const AttentionShape& shape) override {
    return answer(key_of(shape, {}, 0), shape, kWritesRows,
                  [](FrontendGraph& graph) { graph.describe_forward(); });
  }

  CudnnAnswer backward(const AttentionShape& shape, const AttentionGradientShape& gradients,
                       bool repeatable) override {
    return answer(key_of(shape, gradients, repeatable ? 2 : 1), shape, kReadsRows,
                  [&](FrontendGraph& graph) { graph.describe_backward(gradients, repeatable); });
  }

 private:
  // The first versions that heed the strides of the log-sum-exp where they write and where they
  // read it; those before take it as packed by head whatever is declared (cudnn-frontend 1.32,
  // scaled_dot_product_flash_attention.h; its versions before 1.28 do not refuse what is not).
  static constexpr std::size_t kWritesRows = 91200;
  static constexpr std::size_t kReadsRows = 92600;

  // cuDNN says by an error what it does not take; that is an answer, so it is caught here.
  template <class Describe>
  CudnnAnswer answer(const Key& key, const AttentionShape& shape, std::size_t takes_rows_from,
                     const Describe& describe) {
    const auto known = answers_.find(key);
    if (known != answers_.end()) {
      return known->second;
    }
    CudnnAnswer result;
    for (const StatsLayout layout : {StatsLayout::kByRow, StatsLayout::kByHead}) {
      if (layout == StatsLayout::kByRow && fe::detail::get_backend_version() < takes_rows_from) {
        continue;
      }
      try {
        auto graph = std::make_shared<FrontendGraph>(handle_, shape, layout);
        describe(*graph);
        result = {.graph = std::move(graph), .why_not = {}};
        break;
      } catch (const std::exception& error) { result.why_not = error.what(); }
    }
    answers_[key] = result;
    return result;
  }

  std::shared_ptr<Handle> handle_ = std::make_shared<Handle>();
  std::map<Key, CudnnAnswer> answers_;
};

}  // namespace

std::unique_ptr<CudnnAttention> open_cudnn(std::string& why_not) {
  why_not.clear();
  if (!load_library(why_not)) {
    return nullptr;
  }
  try {
    const std::size_t version = fe::detail::get_backend_version();
    if (version < 90000) {
      why_not = "found cuDNN version " + std::to_string(version) + ", expected 9";
      return nullptr;
    }
    return std::make_unique<Frontend>();
  } catch (const std::exception& error) {
    why_not = error.what();
    return nullptr;
  }
}

}  // namespace shardplan
