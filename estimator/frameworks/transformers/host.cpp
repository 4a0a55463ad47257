#include "estimator/frameworks/transformers/host.h"

#include <array>

namespace shardplan::transformers {
namespace {

constexpr auto kNumbers = std::to_array<HostNumber>({
    {.name = "host_slowdown", .member = &HostTable::host_slowdown, .is_seconds = false},
    {.name = "layer", .member = &HostTable::layer},
    {.name = "head_norms", .member = &HostTable::head_norms},
    {.name = "ends", .member = &HostTable::ends},
    {.name = "sharded", .member = &HostTable::sharded},
    {.name = "sharded_ends", .member = &HostTable::sharded_ends},
});

}  // namespace

constinit const HostLaunches kHost = {.numbers = kNumbers,
                                      .shardings_per_microbatch = [](const Job&, const Plan& plan) {
                                        return plan.zero > 0 ? 1.0 : 0.0;
                                      }};

}  // namespace shardplan::transformers
