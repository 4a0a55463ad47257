#include "validator/cuda_rank.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/cuda_check.h"
#include "kernels/embedding.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/squared_norm.h"
#include "validator/cuda_operations.h"

namespace shardplan {
namespace {

constexpr std::int64_t kProductWorkspaceBytes = 32 * kMiB;  // what cuBLASLt recommends on Hopper

GemmType type_of(DType dtype) {
  if (dtype != DType::kFp32 && dtype != DType::kBf16) {
    throw std::logic_error("cuda: no product of " + std::string(name_of(dtype)));
  }
  return dtype == DType::kFp32 ? GemmType::kFloat : GemmType::kBf16;
}

}  // namespace

Program widened(Program program) {
  for (Tensor& tensor : program.tensors) {
    tensor.dtype = tensor.dtype == DType::kBf16 ? DType::kFp32 : tensor.dtype;
    tensor.bytes *= 2;
    tensor.offset *= 2;
  }
  program.persistent_bytes *= 2;
  program.dynamic_bytes *= 2;
  return program;
}

CudaRank::CudaRank(Program program, int device,
                   std::vector<std::unique_ptr<CudaCommunicator>> groups)
    : program_(std::move(program)), device_(device), groups_(std::move(groups)) {
  use_device();
  CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&arenas_[0]),
                        static_cast<std::size_t>(program_.persistent_bytes)));
  CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&arenas_[1]),
                        static_cast<std::size_t>(program_.dynamic_bytes)));
  scratch_bytes_ = kProductWorkspaceBytes + largest_scratch();
  CUDA_CHECK(
      cudaMalloc(reinterpret_cast<void**>(&scratch_), static_cast<std::size_t>(scratch_bytes_)));
  int least = 0;
  int greatest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (std::int64_t i = 0; i < kNumStreams; ++i) {
    // Communication first: what others wait for.
    const int priority = static_cast<Stream>(i) == Stream::kCompute ? least : greatest;
    CUDA_CHECK(
        cudaStreamCreateWithPriority(&streams_.emplace_back(), cudaStreamNonBlocking, priority));
  }
  for (std::int64_t i = 0; i < program_.num_events; ++i) {
    CUDA_CHECK(cudaEventCreateWithFlags(&events_.emplace_back(), cudaEventDisableTiming));
  }
  prepare_products();
  prepare_tables();
  synchronize();
}

CudaRank::~CudaRank() {
  cudaSetDevice(device_);
  cudaDeviceSynchronize();
  for (cudaEvent_t event : events_) { cudaEventDestroy(event); }
  for (cudaStream_t stream : streams_) { cudaStreamDestroy(stream); }
  for (char* memory : {arenas_[0], arenas_[1], scratch_}) { cudaFree(memory); }
}

void CudaRank::use_device() const {
  CUDA_CHECK(cudaSetDevice(device_));
}

void CudaRank::synchronize() const {
  for (cudaStream_t stream : streams_) { CUDA_CHECK(cudaStreamSynchronize(stream)); }
}

DeviceView CudaRank::resolve(const View& view) const {
  if (!view.present()) {
    return {};
  }
  const Tensor& tensor = program_.tensors.at(static_cast<std::size_t>(view.tensor));
  return {.data = arenas_[static_cast<std::size_t>(tensor.arena)] + tensor.offset +
                  view.offset * bytes_of(tensor.dtype),
          .dtype = tensor.dtype,
          .rows = view.rows,
          .cols = view.cols,
          .stride = view.stride};
}

DeviceView CudaRank::whole(std::int64_t tensor) const {
  const Tensor& row = program_.tensors.at(static_cast<std::size_t>(tensor));
  return resolve({.tensor = tensor, .rows = row.rows, .cols = row.cols, .stride = row.cols});
}

DeviceView CudaRank::elements(std::int64_t tensor, std::int64_t first, std::int64_t count) const {
  return resolve({.tensor = tensor, .offset = first, .rows = 1, .cols = count, .stride = count});
}

void CudaRank::clear() {
  const DeviceView table = rotary_table_;
  CUDA_CHECK(cudaMemsetAsync(arenas_[0], 0, static_cast<std::size_t>(program_.persistent_bytes),
                             streams_[0]));
  if (table.present()) {
    prepare_tables();
  }
  synchronize();
}

// One descriptor and algorithm for every product, chosen before the first step.
void CudaRank::prepare_products() {
  library_ = std::make_unique<GemmLibrary>();
  for (std::size_t i = 0; i < program_.operations.size(); ++i) {
    const Operation& op = program_.operations[i];
    if (op.kind != OpKind::kGemm) {
      continue;
    }
    const DeviceView a = resolve(op.in[0]);
    const DeviceView b = resolve(op.in[1]);
    const DeviceView out = resolve(op.out[0]);
    const auto layout = [](bool turned) {
      return turned ? GemmLayout::kTransposed : GemmLayout::kPlain;
    };
    const GemmShape shape{.rows = out.rows,
                          .columns = out.cols,
                          .inner = op.attributes.transpose_a ? a.rows : a.cols,
                          .a_layout = layout(op.attributes.transpose_a),
                          .b_layout = layout(op.attributes.transpose_b),
                          .a_stride = a.stride,
                          .b_stride = b.stride,
                          .out_stride = out.stride,
                          .in_type = type_of(a.dtype),
                          .out_type = type_of(out.dtype)};
    products_[static_cast<std::int64_t>(i)] =
        std::make_unique<Gemm>(*library_, shape, kProductWorkspaceBytes);
  }
}

void CudaRank::prepare_tables() {
  for (std::size_t i = 0; i < program_.tensors.size(); ++i) {
    if (program_.tensors[i].name == "rotary_table") {
      rotary_table_ = whole(static_cast<std::int64_t>(i));
    }
  }
  for (const Operation& op : program_.operations) {
    if (op.kind == OpKind::kRope && rotary_table_.present()) {
      rope_table(rotary_table_.as<float2>(), rotary_table_.rows, op.attributes.head_dim,
                 op.attributes.theta, streams_[0]);
      return;
    }
  }
}

std::int64_t CudaRank::largest_scratch() const {
  std::int64_t bytes = 0;
  for (const Operation& op : program_.operations) {
    std::int64_t need = 0;
    if (op.kind == OpKind::kRmsNormBackward) {
      need = kRmsNormPartials * op.out[0].cols * 4;
    } else if (op.kind == OpKind::kEmbeddingBackward) {
      need = embedding_backward_scratch(op.in[1].rows) * 4;
    } else if (op.kind == OpKind::kSquaredNorm) {
      need = kSquaredNormPartials * 8;
    }
    bytes = std::max(bytes, need);
  }
  return round_up(bytes, kTensorAlignment);
}

void CudaRank::launch_step(std::int64_t step, double learning_rate) {
  const OperationLauncher launcher(*this, step, learning_rate);
  for (std::size_t i = 0; i < program_.operations.size(); ++i) {
    const Operation& op = program_.operations[i];
    cudaStream_t stream = streams_[static_cast<std::size_t>(op.stream)];
    for (const std::int64_t event : op.waits) {
      CUDA_CHECK(cudaStreamWaitEvent(stream, events_[static_cast<std::size_t>(event)]));
    }
    launcher.launch(static_cast<std::int64_t>(i));
    if (op.records >= 0) {
      CUDA_CHECK(cudaEventRecord(events_[static_cast<std::size_t>(op.records)], stream));
    }
  }
}

}  // namespace shardplan
