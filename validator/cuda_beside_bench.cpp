// Products beside collectives, for `calibrate --time`: two GPUs, a thread for each; the collectives
// on as many channels as the trainer gives to those of its data and tensor streams.
#include <algorithm>
#include <array>
#include <barrier>
#include <memory>
#include <string>
#include <utility>

#include "kernels/gemm.h"
#include "validator/cuda_calibration.h"
#include "validator/cuda_communicator.h"
#include "validator/cuda_rank.h"
#include "validator/cuda_stopwatch.h"
#include "validator/on_threads.h"

namespace shardplan {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kRanks = 2;
constexpr std::int64_t kChannels = 16;
constexpr std::int64_t kTokens = 16384;
constexpr std::int64_t kHidden = 4096;
constexpr std::int64_t kWidest = 28672;
constexpr std::int64_t kParameters = 218112000;  // of one layer of Llama-3-8B
constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

// The products of a layer's forward pass: outputs and inputs.
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 4> kProducts = {
    {{6144, kHidden}, {kHidden, kHidden}, {kWidest, kHidden}, {kHidden, 14336}}};

// One layer of Llama-3-8B: its products, and the gather of its weights and the scatter of its
// gradients in turn, as ZeRO 3 has them.
class Layer {
 public:
  Layer(const ncclUniqueId& id, int rank)
      : communicator_(id, kRanks, rank, kChannels),
        x_(kTokens * kWidest),
        y_(kTokens * kWidest),
        weight_(kWidest * kHidden),
        weights_(kParameters),
        own_weights_(kParameters / kRanks),
        gradients_(kParameters),
        own_gradients_(kParameters / kRanks),
        workspace_(kWorkspaceBytes) {
    fill_random(x_, kTokens * kWidest, 1);
    fill_random(weight_, kWidest * kHidden, 2);
    fill_random(own_weights_, kParameters / kRanks, 3);
    CUDA_CHECK(cudaMemset(gradients_.data(), 0, kParameters * sizeof(float)));
    for (const auto& [out, in] : kProducts) {
      const GemmShape shape = {.rows = kTokens,
                               .columns = out,
                               .inner = in,
                               .b_layout = GemmLayout::kTransposed,
                               .a_stride = in,
                               .b_stride = in,
                               .out_stride = out};
      products_.push_back(std::make_unique<Gemm>(library_, shape, kWorkspaceBytes));
    }
  }

  void multiply(cudaStream_t on) {
    for (const auto& product : products_) {
      product->run(y_.data(), x_.data(), weight_.data(), workspace_.data(), on);
    }
  }

  void exchange(cudaStream_t on) {
    communicator_.all_gather(view(own_weights_.data(), DType::kBf16, kParameters / kRanks),
                             {view(weights_.data(), DType::kBf16, kParameters)}, on);
    communicator_.reduce_scatter({view(gradients_.data(), DType::kFp32, kParameters)},
                                 view(own_gradients_.data(), DType::kFp32, kParameters / kRanks),
                                 on);
  }

 private:
  static DeviceView view(void* data, DType dtype, std::int64_t elements) {
    return {.data = data, .dtype = dtype, .rows = 1, .cols = elements, .stride = elements};
  }

  CudaCommunicator communicator_;
  GemmLibrary library_;
  DeviceBuffer<Bf16> x_;
  DeviceBuffer<Bf16> y_;
  DeviceBuffer<Bf16> weight_;
  DeviceBuffer<Bf16> weights_;
  DeviceBuffer<Bf16> own_weights_;
  DeviceBuffer<float> gradients_;
  DeviceBuffer<float> own_gradients_;
  DeviceBuffer<char> workspace_;
  std::vector<std::unique_ptr<Gemm>> products_;
};

enum class Priority { kLeast, kGreatest };

class PriorityStream {
 public:
  explicit PriorityStream(Priority priority) {
    int least = 0;
    int greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                            priority == Priority::kLeast ? least : greatest));
  }
  ~PriorityStream() { cudaStreamDestroy(stream_); }
  PriorityStream(const PriorityStream&) = delete;
  PriorityStream& operator=(const PriorityStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT: as ScopedStream

 private:
  cudaStream_t stream_ = nullptr;
};

// Seconds of a call while calls of the other kind keep their stream busy on both ranks for longer.
double beside_s(const TimedCall& call, std::int64_t calls, const TimedCall& other,
                std::int64_t others, cudaStream_t stream, cudaStream_t other_stream) {
  other(other_stream);
  CUDA_CHECK(cudaStreamSynchronize(other_stream));
  for (std::int64_t i = 0; i < others; ++i) { other(other_stream); }
  const double seconds = Stopwatch(stream).batch_s(call, calls);
  CUDA_CHECK(cudaStreamSynchronize(other_stream));
  return seconds;
}

BesideRates measure_rank(const ncclUniqueId& id, int rank, std::barrier<>& together) {
  constexpr std::int64_t kCalls = 30;
  // Longer than the calls that are timed, however slow those are.
  constexpr std::int64_t kExchanges = 150;
  constexpr std::int64_t kProductsOfLayers = 60;
  CUDA_CHECK(cudaSetDevice(rank));
  Layer layer(id, rank);
  // Communication first, as in the trainer (cuda_rank.cpp).
  const PriorityStream compute(Priority::kLeast);
  const PriorityStream data(Priority::kGreatest);
  const TimedCall multiply = [&](cudaStream_t on) { layer.multiply(on); };
  const TimedCall exchange = [&](cudaStream_t on) { layer.exchange(on); };
  const auto alone = [&](const TimedCall& call, cudaStream_t stream) {
    together.arrive_and_wait();
    Stopwatch watch(stream);
    watch.batch_s(call, kCalls / 4);
    return watch.batch_s(call, kCalls);
  };
  alone(multiply, compute);
  const double product_s = alone(multiply, compute);
  const double exchange_s = alone(exchange, data);
  together.arrive_and_wait();
  const double product_beside_s = beside_s(multiply, kCalls, exchange, kExchanges, compute, data);
  together.arrive_and_wait();
  const double exchange_beside_s =
      beside_s(exchange, kCalls, multiply, kProductsOfLayers, data, compute);
  return {.products = std::min(1.0, product_s / product_beside_s),
          .collectives = std::min(1.0, exchange_s / exchange_beside_s)};
}

}  // namespace

BesideRates measure_beside() {
  const ncclUniqueId id = new_communicator_id();
  std::barrier together(kRanks);
  BesideRates rates;
  on_threads(kRanks, [&](std::size_t i) {
    try {
      const BesideRates mine = measure_rank(id, static_cast<int>(i), together);
      if (i == 0) {
        rates = mine;
      }
    } catch (...) {
      together.arrive_and_drop();
      throw;
    }
  });
  return rates;
}

}  // namespace shardplan
