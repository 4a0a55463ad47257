// Collectives of the host backend between processes, through the run's key-value store: slow, and
// right. Every member sets what it brings and reads what the others brought.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "validator/host/collective.h"
#include "validator/supervise/rank_backend.h"

namespace shardplan {

template <class T>
class HostStoreExchange : public HostExchange<T> {
 public:
  explicit HostStoreExchange(RunStore& store) : store_(store) {}
  void run(const Operation& operation, const Group& group, std::int64_t rank,
           const HostArguments<T>& arguments) override;

 private:
  // Of messages between the same two ranks: from, to, tag.
  using Address = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

  void send(const Address& address, const HostView<T>& what);
  void receive(const Address& address, const HostView<T>& where);

  RunStore& store_;
  std::map<std::vector<std::int64_t>, std::int64_t> num_meetings_;  // of groups
  std::map<Address, std::int64_t> num_messages_;
};

// The exchange of a rank that runs alone: moves nothing, so that outputs keep whatever they hold.
template <class T>
class NoExchange : public HostExchange<T> {
 public:
  void run(const Operation&, const Group&, std::int64_t, const HostArguments<T>&) override {}
};

}  // namespace shardplan
