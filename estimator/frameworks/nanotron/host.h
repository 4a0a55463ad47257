// What hosts take to launch nanotron's layers.
#pragma once

#include "estimator/time/host_launches.h"

namespace shardplan::nanotron {

extern const HostLaunches kHost;

}  // namespace shardplan::nanotron
