#include "estimator/frameworks/native/outside.h"

#include <optional>
#include <string_view>

#include "estimator/frameworks/native/communicators.h"
#include "estimator/frameworks/pieces/communicators.h"
#include "estimator/plan/units.h"

namespace shardplan::native {
namespace {

// The native trainer's own values, driver 580, CUDA 13.0, NCCL 2.28.9 (data/measured/
// training_h200.txt): 534 MiB beside the arenas of one GPU; on two, less the communicators' own,
// 374 MiB more under dp or tp, and 62 beyond that with pp or cp.
const NativeMemory kNativeOnH200{.context_bytes = 520 * kMiB,
                                 .library_bytes = 14 * kMiB,
                                 .nccl_bytes = 374 * kMiB,
                                 .first_send_bytes = 62 * kMiB,
                                 .source = {}};

}  // namespace

// Our own trainer bounds the channels of its communicators, so that they can be counted; what it
// pays once is measured.
void add_outside(const Job& job, const Plan& plan, std::int64_t pp_rank, OutsideParts& parts) {
  const GpuSpec& gpu = job.cluster.gpu;
  const NativeMemory& once = gpu.native ? *gpu.native : kNativeOnH200;
  const Origin origin = gpu.native ? Origin::kMeasured : Origin::kMeasuredElsewhere;
  add_process(once.context_bytes, origin, once.library_bytes, origin, parts);
  bool any = false;
  for (const NativeCommunicator& communicator : native_communicators(job, plan, pp_rank)) {
    if (communicator.bytes == 0) {
      continue;
    }
    any = true;
    parts.add({.prefix = "communicator.",
               .name = communicator.name,
               .bytes = communicator.bytes,
               .formula = "4 MiB + 6 MiB x channels + 12 MiB x connected channels, arriving 10 and "
                          "leaving 2 (NCCL 2.28, src/channel.cc, src/transport/p2p.cc)",
               .origin = Origin::kDocumented});
  }
  // Absent from the file of a GPU that was measured alone.
  const auto visit_nccl = [&](std::string_view name, std::string_view formula,
                              std::optional<std::int64_t> NativeMemory::*field) {
    const auto measured_bytes = gpu.native ? *gpu.native.*field : std::nullopt;
    parts.add({.name = name,
               .bytes = measured_bytes.value_or((kNativeOnH200.*field).value()),
               .formula = formula,
               .origin = origin_of(measured_bytes)});
  };
  if (any) {
    visit_nccl("nccl", "once, first communicator (measured)", &NativeMemory::nccl_bytes);
  }
  // Keys and values that go around the ring are messages; those that are gathered are broadcasts,
  // which take as much.
  if (plan.pp > 1 || plan.cp > 1) {
    visit_nccl("nccl.first_send", "once, first message, ring shift or broadcast (measured)",
               &NativeMemory::first_send_bytes);
  }
}

// Experts are connected only where a rank's own layers have some.
SeenByOutside seen_by_outside(const Job& job, const Plan& plan) {
  return {.chunks = plan.vpp, .layers = job.model.has_moe_layers()};
}

}  // namespace shardplan::native
