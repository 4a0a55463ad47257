// What hosts take to launch Hugging Face's layers, and FSDP2's hooks around them.
#pragma once

#include "estimator/time/host_launches.h"

namespace shardplan::transformers {

extern const HostLaunches kHost;

}  // namespace shardplan::transformers
