// What hosts take to launch Hugging Face's layers and the hooks of DeepSpeed's ZeRO around them.
#pragma once

#include "estimator/time/host_launches.h"

namespace shardplan {

extern const HostLaunches kDeepspeedHost;

}  // namespace shardplan
