#include "estimator/frameworks/nanotron/host.h"

#include <array>

namespace shardplan::nanotron {
namespace {

constexpr auto kNumbers = std::to_array<HostNumber>({
    {.name = "host_slowdown", .member = &HostTable::host_slowdown, .is_seconds = false},
    {.name = "layer", .member = &HostTable::layer},
    {.name = "tensor_parallel", .member = &HostTable::tensor_parallel},
    {.name = "ends", .member = &HostTable::ends},
    {.name = "update", .member = &HostTable::update_s},
});

}  // namespace

constinit const HostLaunches kHost = {.numbers = kNumbers};

}  // namespace shardplan::nanotron
