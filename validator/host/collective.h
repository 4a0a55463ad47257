// The arithmetic of collectives on the host, for one member that can see what all members brought,
// wherever the members are.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "validator/host/ops.h"
#include "validator/program/program.h"

namespace shardplan {

// Operation::in of every member, by its index within the group.
template <class T>
using HostInputs = std::vector<std::vector<HostView<T>>>;

// Writes member `self`'s outputs. Calls all_have_read() once, when this member has read the inputs
// for the last time: it returns when nobody reads them any more. Not for send and receive.
template <class T>
void complete_collective(const Operation& operation, const HostInputs<T>& inputs, std::int64_t self,
                         const HostArguments<T>& arguments,
                         const std::function<void()>& all_have_read);

// How the host backend's ranks reach each other.
template <class T>
class HostExchange {
 public:
  virtual ~HostExchange() = default;
  // Runs a collective, send or receive of the rank; returns when its outputs are written and its
  // inputs may change. Throws std::runtime_error when another rank has failed.
  virtual void run(const Operation& operation, const Group& group, std::int64_t rank,
                   const HostArguments<T>& arguments) = 0;
};

}  // namespace shardplan
