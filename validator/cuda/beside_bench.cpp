// Products beside collectives, for `calibrate --time`: two GPUs, a thread for each; those of NCCL
// on as many channels as the trainer gives to those of its data and tensor streams.
#include "validator/cuda/beside_bench.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <memory>
#include <utility>

#include "kernels/gemm/gemm.h"
#include "validator/cuda/calibration.h"
#include "validator/cuda/communicator.h"
#include "validator/cuda/copy_group.h"
#include "validator/cuda/rank.h"
#include "validator/cuda/stopwatch.h"
#include "validator/supervise/on_threads.h"

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

// Those of one layer of Llama-3-8B.
class Products {
 public:
  Products()
      : x_(kTokens * kWidest),
        y_(kTokens * kWidest),
        weight_(kWidest * kHidden),
        workspace_(kWorkspaceBytes) {
    fill_random(x_, kTokens * kWidest, 1);
    fill_random(weight_, kWidest * kHidden, 2);
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

  void operator()(cudaStream_t on) {
    for (const auto& product : products_) {
      product->run(y_.data(), x_.data(), weight_.data(), workspace_.data(), on);
    }
  }

 private:
  GemmLibrary library_;
  DeviceBuffer<Bf16> x_;
  DeviceBuffer<Bf16> y_;
  DeviceBuffer<Bf16> weight_;
  DeviceBuffer<char> workspace_;
  std::vector<std::unique_ptr<Gemm>> products_;
};

DeviceView view(void* data, DType dtype, std::int64_t elements) {
  return {.data = data, .dtype = dtype, .rows = 1, .cols = elements, .stride = elements};
}

// The gather of that layer's weights and the scatter of its gradients in turn, as ZeRO 3 has them.
class Exchange {
 public:
  Exchange(const ncclUniqueId& id, int rank)
      : communicator_(id, kRanks, rank, kChannels),
        weights_(kParameters),
        own_weights_(kParameters / kRanks),
        gradients_(kParameters),
        own_gradients_(kParameters / kRanks) {
    fill_random(own_weights_, kParameters / kRanks, 3);
    CUDA_CHECK(cudaMemset(gradients_.data(), 0, kParameters * sizeof(float)));
  }

  void operator()(cudaStream_t on) {
    communicator_.all_gather(view(own_weights_.data(), DType::kBf16, kParameters / kRanks),
                             {view(weights_.data(), DType::kBf16, kParameters)}, on);
    communicator_.reduce_scatter({view(gradients_.data(), DType::kFp32, kParameters)},
                                 view(own_gradients_.data(), DType::kFp32, kParameters / kRanks),
                                 on);
  }

 private:
  CudaCommunicator communicator_;
  DeviceBuffer<Bf16> weights_;
  DeviceBuffer<Bf16> own_weights_;
  DeviceBuffer<float> gradients_;
  DeviceBuffer<float> own_gradients_;
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

// How many are timed, and how many of the other kind go on for longer, however slow the former are.
struct Calls {
  std::int64_t products = 30;  // of all of a layer
  std::int64_t collectives = 30;
  std::int64_t products_beside = 60;
  std::int64_t collectives_beside = 150;
};

BesideRates measure_rank(const TimedCall& exchange, const Calls& calls, std::barrier<>& together) {
  Products products;
  // Communication first, as in the trainer (rank.cpp).
  const PriorityStream compute(Priority::kLeast);
  const PriorityStream data(Priority::kGreatest);
  const TimedCall multiply = [&](cudaStream_t on) { products(on); };
  const auto alone = [&](const TimedCall& call, std::int64_t count, cudaStream_t stream) {
    together.arrive_and_wait();
    Stopwatch watch(stream);
    watch.batch_s(call, count / 4);
    return watch.batch_s(call, count);
  };
  alone(multiply, calls.products, compute);
  const double product_s = alone(multiply, calls.products, compute);
  const double exchange_s = alone(exchange, calls.collectives, data);
  together.arrive_and_wait();
  const double product_beside_s =
      beside_s(multiply, calls.products, exchange, calls.collectives_beside, compute, data);
  together.arrive_and_wait();
  const double exchange_beside_s =
      beside_s(exchange, calls.collectives, multiply, calls.products_beside, data, compute);
  together.arrive_and_wait();  // nobody's memory goes while others run
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
      const int rank = static_cast<int>(i);
      CUDA_CHECK(cudaSetDevice(rank));
      Exchange exchange(id, rank);
      const BesideRates mine =
          measure_rank([&](cudaStream_t on) { exchange(on); }, Calls{}, together);
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

// Gathers so large that few of them last: the driver's queue holds no more (pace.h).
std::optional<BesideRates> measure_beside_copies() {
  constexpr std::int64_t kElements = std::int64_t{1} << 31;
  constexpr Calls kCalls = {.collectives = 16, .collectives_beside = 120};
  if (!CopyGroup::can_be_of(kRanks)) {
    return std::nullopt;
  }
  constexpr std::int64_t kWholeBytes = kElements * sizeof(Bf16);
  CopyGroup group(kRanks, kWholeBytes);
  std::barrier together(kRanks);
  BesideRates rates;
  group.on_members([&](std::int64_t rank) {
    try {
      const DeviceView whole = view(group.room(rank), DType::kBf16, kElements);
      const DeviceView own =
          view(group.room(rank) + rank * kWholeBytes / kRanks, DType::kBf16, kElements / kRanks);
      const BesideRates mine =
          measure_rank([&](cudaStream_t on) { group.peers(rank).all_gather(own, {whole}, on); },
                       kCalls, together);
      if (rank == 0) {
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
