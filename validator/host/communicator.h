// Collectives between threads that stand for ranks. One object for all ranks of a run.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "validator/host/collective.h"
#include "validator/program/program.h"

namespace shardplan {

template <class T>
class HostCommunicator : public HostExchange<T> {
 public:
  void run(const Operation& operation, const Group& group, std::int64_t rank,
           const HostArguments<T>& arguments) override;

  // A rank has failed: nobody waits for it.
  void fail();

 private:
  // Of the members of one group. Every meeting wakes its own members only: waking all ranks at
  // every step of every group costs more than what they compute.
  struct Meeting {
    std::mutex mutex;
    std::condition_variable changed;
    HostInputs<T> inputs;
    std::int64_t arrived = 0;
    std::int64_t generation = 0;
  };
  // From, to, tag.
  using Address = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

  void wait_for_all(Meeting& meeting, std::int64_t size);
  Meeting& meeting_of(const Group& group);
  void send(const Address& address, const HostView<T>& what);
  void receive(const Address& address, const HostView<T>& where);

  std::atomic<bool> failed_ = false;
  std::mutex meetings_mutex_;
  std::map<std::vector<std::int64_t>, Meeting> meetings_;
  std::mutex messages_mutex_;
  std::condition_variable arrived_;
  std::map<Address, std::vector<T>> messages_;
};

}  // namespace shardplan
