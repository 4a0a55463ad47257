#include "estimator/frameworks/nanotron/host.h"

namespace shardplan::nanotron {
namespace {

// An eager layer with norms and rotary embedding in Triton, and what the accumulator does with
// its gradients: 5.0 ms from models of 2 and 6 layers (data/measured/nanotron_h200.jsonl,
// nano-host-...), 3.3 on another machine; between them, divided as Megatron-core's local layers'.
// Collectives 40 a call.
constexpr HostTable kTable = {.host_slowdown = kMeasuringHost,
                              .layer = microseconds(1600, 2600),
                              .tensor_parallel = microseconds(160, 240),
                              .ends = microseconds(1500, 2000),
                              .update_s = 900 * kMicro};

}  // namespace

constinit const HostLaunches kHost = {.table = [](const FrameworkProfile&) { return &kTable; }};

}  // namespace shardplan::nanotron
