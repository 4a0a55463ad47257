// The collectives of `calibrate --time`: one thread and one communicator for every GPU.
#include "validator/cuda/collective_bench.h"

#include <nccl.h>

#include <algorithm>
#include <barrier>

#include "kernels/pointwise/device_buffer.h"
#include "validator/cuda/calibration.h"
#include "validator/cuda/communicator.h"
#include "validator/supervise/on_threads.h"

namespace shardplan {
namespace {

void check_nccl(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) {
    throw std::runtime_error(std::string(what) + ": " + ncclGetErrorString(result) + ": " +
                             ncclGetLastError(nullptr));
  }
}
#define NCCL_CHECK(call) check_nccl((call), #call)

// Bytes as collective_time.h counts them: of the whole tensor, on every rank.
struct Message {
  char* in;
  char* out;
  std::size_t bytes;
  int ranks;
  int rank;
};

void exchange_all(const Message& message, ncclComm_t on, cudaStream_t stream) {
  const std::size_t part = message.bytes / static_cast<std::size_t>(message.ranks);
  NCCL_CHECK(ncclGroupStart());
  for (int peer = 0; peer < message.ranks; ++peer) {
    const std::size_t at = part * static_cast<std::size_t>(peer);
    NCCL_CHECK(ncclSend(message.in + at, part, ncclChar, peer, on, stream));
    NCCL_CHECK(ncclRecv(message.out + at, part, ncclChar, peer, on, stream));
  }
  NCCL_CHECK(ncclGroupEnd());
}

// To the next, from the one before: all links busy, as in a pipeline's steady state.
void send_on(const Message& message, ncclComm_t on, cudaStream_t stream) {
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclSend(message.in, message.bytes, ncclChar, (message.rank + 1) % message.ranks, on,
                      stream));
  NCCL_CHECK(ncclRecv(message.out, message.bytes, ncclChar,
                      (message.rank + message.ranks - 1) % message.ranks, on, stream));
  NCCL_CHECK(ncclGroupEnd());
}

void launch(Collective collective, const Message& message, ncclComm_t on, cudaStream_t stream) {
  const std::size_t part = message.bytes / static_cast<std::size_t>(message.ranks);
  switch (collective) {
    case Collective::kAllGather:
      NCCL_CHECK(ncclAllGather(message.in, message.out, part / 2, ncclBfloat16, on, stream));
      return;
    case Collective::kReduceScatter:
      NCCL_CHECK(
          ncclReduceScatter(message.in, message.out, part / 2, ncclBfloat16, ncclSum, on, stream));
      return;
    case Collective::kAllReduce:
      NCCL_CHECK(ncclAllReduce(message.in, message.out, message.bytes / 2, ncclBfloat16, ncclSum,
                               on, stream));
      return;
    case Collective::kAllToAll: exchange_all(message, on, stream); return;
    case Collective::kSend: send_on(message, on, stream); return;
  }
}

// Seconds of one call in a row of calls, from the stream of one rank.
double row_s(Collective collective, const Message& message, ncclComm_t on, cudaStream_t stream,
             int calls) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  launch(collective, message, on, stream);
  CUDA_CHECK(cudaEventRecord(begin, stream));
  for (int i = 0; i < calls; ++i) { launch(collective, message, on, stream); }
  CUDA_CHECK(cudaEventRecord(end, stream));
  CUDA_CHECK(cudaEventSynchronize(end));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  return static_cast<double>(milliseconds) / 1e3 / calls;
}

// Every rank makes the same calls; rank 0 keeps the medians.
std::vector<CollectiveCurve> measure_group(const TimeCalibration& calibration, int ranks, int rank,
                                           const ncclUniqueId& id, std::barrier<>& together) {
  constexpr int kRows = 5;
  CUDA_CHECK(cudaSetDevice(rank));
  ncclComm_t communicator = nullptr;
  NCCL_CHECK(ncclCommInitRank(&communicator, ranks, id, rank));
  std::vector<CollectiveCurve> curves;
  {
    const ScopedStream stream;
    const std::int64_t most = calibration.message_bytes.back();
    DeviceBuffer<char> in(most);
    DeviceBuffer<char> out(most);
    CUDA_CHECK(cudaMemset(in.data(), 0x3c, static_cast<std::size_t>(most)));
    for (const auto& [collective, name] : kCollectives) {
      CollectiveCurve curve = {.collective = collective, .ranks = ranks, .seconds = {}};
      for (const std::int64_t bytes : calibration.message_bytes) {
        const Message message = {.in = in.data(),
                                 .out = out.data(),
                                 .bytes = static_cast<std::size_t>(bytes),
                                 .ranks = ranks,
                                 .rank = rank};
        const int calls = bytes > (1 << 26) ? 5 : 20;
        std::vector<double> rows;
        for (int row = 0; row < kRows; ++row) {
          together.arrive_and_wait();
          rows.push_back(row_s(collective, message, communicator, stream, calls));
        }
        std::ranges::sort(rows);
        curve.seconds.push_back({.size = static_cast<double>(bytes), .value = rows[kRows / 2]});
      }
      curves.push_back(std::move(curve));
    }
  }
  NCCL_CHECK(ncclCommDestroy(communicator));
  return curves;
}

}  // namespace

std::vector<CollectiveCurve> measure_collectives(const TimeCalibration& calibration) {
  std::vector<CollectiveCurve> curves;
  for (int ranks = 2; ranks <= calibration.num_gpus; ranks *= 2) {
    const ncclUniqueId id = new_communicator_id();
    std::barrier together(ranks);
    std::vector<CollectiveCurve> of_group;
    on_threads(static_cast<std::size_t>(ranks), [&](std::size_t i) {
      try {
        std::vector<CollectiveCurve> mine =
            measure_group(calibration, ranks, static_cast<int>(i), id, together);
        if (i == 0) {
          of_group = std::move(mine);
        }
      } catch (...) {
        together.arrive_and_drop();
        throw;
      }
    });
    curves.insert(curves.end(), of_group.begin(), of_group.end());
  }
  std::ranges::stable_sort(curves, {}, [](const CollectiveCurve& curve) {
    return std::pair(curve.collective, curve.ranks);
  });
  return curves;
}

}  // namespace shardplan
