// Collectives by copy engines, for `calibrate --time`: one thread for every GPU.
#include "validator/cuda/copies_bench.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <stdexcept>

#include "estimator/plan/number.h"
#include "validator/cuda/calibration.h"
#include "validator/cuda/copy_group.h"
#include "validator/cuda/rank.h"
#include "validator/cuda/stopwatch.h"

namespace shardplan {
namespace {

constexpr std::array kCopied = {Collective::kAllGather, Collective::kAllToAll, Collective::kSend};

// Bytes as collective_time.h counts them: of the whole tensor, on every rank.
struct Message {
  char* in;
  char* out;
  std::int64_t bytes;
  std::int64_t ranks;
  std::int64_t rank;
};

DeviceView view(char* data, std::int64_t bytes) {
  const std::int64_t elements = div_exact(bytes, bytes_of(DType::kBf16));
  return {.data = data, .dtype = DType::kBf16, .rows = 1, .cols = elements, .stride = elements};
}

// A member's part of what is gathered is in place, as those of weights and keys are: the time is
// that of the bytes received, by which it counts for groups of other sizes. A message goes to the
// next, from the one before: all links busy, as in a pipeline's steady state.
void launch(Collective collective, const Message& message, CudaPeers& on, cudaStream_t stream) {
  const DeviceView out = view(message.out, message.bytes);
  switch (collective) {
    case Collective::kAllGather: {
      const std::int64_t part = div_exact(message.bytes, message.ranks);
      on.all_gather(view(message.out + message.rank * part, part), {out}, stream);
      return;
    }
    case Collective::kSend: on.ring_shift(view(message.in, message.bytes), out, stream); return;
    case Collective::kAllToAll:
      on.exchange({view(message.in, message.bytes)}, {out}, stream);
      return;
    case Collective::kReduceScatter:
    case Collective::kAllReduce: break;
  }
  throw std::logic_error("measure_copies: not a collective by copies alone");
}

// Every member makes the same calls; median seconds of one, from the stream of this member.
class CopyBench {
 public:
  CopyBench(CopyGroup& group, std::int64_t ranks, std::int64_t rank, std::int64_t most_bytes)
      : peers_(group.peers(rank)),
        ranks_(ranks),
        rank_(rank),
        most_bytes_(most_bytes),
        in_(group.room(rank)),
        out_(in_ + most_bytes),
        watch_(stream_) {}

  CollectiveCurve curve(Collective collective, const std::vector<std::int64_t>& sizes,
                        std::barrier<>& together) {
    constexpr int kRows = 5;
    CollectiveCurve curve = {.collective = collective, .ranks = ranks_, .seconds = {}};
    for (const std::int64_t bytes : sizes) {
      const Message message = {
          .in = in_, .out = out_, .bytes = bytes, .ranks = ranks_, .rank = rank_};
      std::vector<double> rows;
      for (int row = 0; row < kRows; ++row) {
        together.arrive_and_wait();
        rows.push_back(row_s(collective, message));
      }
      std::ranges::sort(rows);
      curve.seconds.push_back({.size = number(bytes), .value = rows[kRows / 2]});
    }
    return curve;
  }

 private:
  // Seconds of one call in a row of calls. The host launches them all while the GPU still copies
  // its own memory, as it runs ahead in a step. The first one lets members start together. Few, for
  // a queue of the driver that is full may stop other members' hosts (pace.h).
  double row_s(Collective collective, const Message& message) {
    constexpr int kAhead = 2;
    const std::int64_t calls = message.bytes > (1 << 26) ? 5 : 10;
    const TimedCall call = [&](cudaStream_t on) { launch(collective, message, peers_, on); };
    for (int i = 0; i < kAhead; ++i) {
      CUDA_CHECK(cudaMemcpyAsync(out_, in_, static_cast<std::size_t>(most_bytes_),
                                 cudaMemcpyDeviceToDevice, stream_));
    }
    call(stream_);
    return watch_.batch_s(call, calls);
  }

  CudaPeers& peers_;
  std::int64_t ranks_;
  std::int64_t rank_;
  std::int64_t most_bytes_;
  char* in_;
  char* out_;
  ScopedStream stream_;
  Stopwatch watch_;
};

std::vector<CollectiveCurve> measure_group(const TimeCalibration& calibration, std::int64_t ranks) {
  const std::int64_t most_bytes = calibration.message_bytes.back();
  CopyGroup group(ranks, 2 * most_bytes);
  std::barrier together(ranks);
  std::vector<CollectiveCurve> curves;
  group.on_members([&](std::int64_t rank) {
    try {
      CopyBench bench(group, ranks, rank, most_bytes);
      for (const Collective collective : kCopied) {
        CollectiveCurve curve = bench.curve(collective, calibration.message_bytes, together);
        if (rank == 0) {
          curves.push_back(std::move(curve));
        }
      }
    } catch (...) {
      together.arrive_and_drop();
      throw;
    }
  });
  return curves;
}

}  // namespace

std::vector<CollectiveCurve> measure_copies(const TimeCalibration& calibration) {
  std::vector<CollectiveCurve> curves;
  for (std::int64_t ranks = 2; ranks <= calibration.num_gpus && CopyGroup::can_be_of(ranks);
       ranks *= 2) {
    const std::vector<CollectiveCurve> of_group = measure_group(calibration, ranks);
    curves.insert(curves.end(), of_group.begin(), of_group.end());
  }
  std::ranges::stable_sort(curves, {}, [](const CollectiveCurve& curve) {
    return std::pair(curve.collective, curve.ranks);
  });
  return curves;
}

}  // namespace shardplan
