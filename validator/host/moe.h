// What a mixture of experts computes on the host.
#pragma once

#include "validator/host/ops.h"
#include "validator/program/program.h"

namespace shardplan {

template <class T>
void run_experts_on_host(OpKind kind, const HostArguments<T>& arguments);

}  // namespace shardplan
