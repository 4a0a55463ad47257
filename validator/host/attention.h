// Attention and the loss on the host.
#pragma once

#include "validator/host/ops.h"
#include "validator/program/program.h"

namespace shardplan {

// Parts of it, by file.
template <class T>
void attention_forward_on_host(const HostArguments<T>& arguments);
template <class T>
void attention_backward_on_host(const HostArguments<T>& arguments);
template <class T>
void lse_merge_on_host(const HostArguments<T>& arguments);
template <class T>
void run_loss_on_host(OpKind kind, const HostArguments<T>& arguments);

}  // namespace shardplan
