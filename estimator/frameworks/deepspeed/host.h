// What hosts take to launch Hugging Face's layers and the hooks of DeepSpeed's ZeRO around them.
#pragma once

#include "estimator/time/host_launches.h"

namespace shardplan::deepspeed {

extern const HostLaunches kHost;

}  // namespace shardplan::deepspeed
