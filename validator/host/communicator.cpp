#include "validator/host/communicator.h"

#include <algorithm>
#include <stdexcept>

namespace shardplan {
template <class T>
typename HostCommunicator<T>::Meeting& HostCommunicator<T>::meeting_of(const Group& group) {
  const std::lock_guard lock(meetings_mutex_);
  Meeting& meeting = meetings_[group.ranks];
  meeting.inputs.resize(group.ranks.size());
  return meeting;
}

template <class T>
void HostCommunicator<T>::wait_for_all(Meeting& meeting, std::int64_t size) {
  std::unique_lock lock(meeting.mutex);
  const std::int64_t generation = meeting.generation;
  if (++meeting.arrived == size) {
    meeting.arrived = 0;
    ++meeting.generation;
    meeting.changed.notify_all();
    return;
  }
  meeting.changed.wait(lock, [&] { return failed_ || meeting.generation != generation; });
  if (meeting.generation == generation) {
    throw std::runtime_error("another rank has failed");
  }
}

template <class T>
void HostCommunicator<T>::send(const Address& address, const HostView<T>& what) {
  std::vector<T> message(static_cast<std::size_t>(what.elements()));
  for (std::size_t e = 0; e < message.size(); ++e) {
    message[e] = what[static_cast<std::int64_t>(e)];
  }
  const std::lock_guard lock(messages_mutex_);
  messages_[address] = std::move(message);
  arrived_.notify_all();
}

template <class T>
void HostCommunicator<T>::receive(const Address& address, const HostView<T>& where) {
  std::unique_lock lock(messages_mutex_);
  arrived_.wait(lock, [&] { return failed_ || messages_.contains(address); });
  if (!messages_.contains(address)) {
    throw std::runtime_error("another rank has failed");
  }
  const std::vector<T>& message = messages_.at(address);
  for (std::size_t e = 0; e < message.size(); ++e) {
    where[static_cast<std::int64_t>(e)] = message[e];
  }
  messages_.erase(address);
}

template <class T>
void HostCommunicator<T>::fail() {
  failed_ = true;
  const std::lock_guard lock(meetings_mutex_);
  for (auto& [ranks, meeting] : meetings_) {
    const std::lock_guard members(meeting.mutex);
    meeting.changed.notify_all();
  }
  const std::lock_guard receivers(messages_mutex_);
  arrived_.notify_all();
}

template <class T>
void HostCommunicator<T>::run(const Operation& operation, const Group& group, std::int64_t rank,
                              const HostArguments<T>& arguments) {
  const std::int64_t tag = operation.attributes.tag;
  if (operation.kind == OpKind::kSend || operation.kind == OpKind::kReceive) {
    const std::int64_t peer = group.ranks.at(static_cast<std::size_t>(operation.attributes.peer));
    return operation.kind == OpKind::kSend ? send({rank, peer, tag}, arguments.in[0])
                                           : receive({peer, rank, tag}, arguments.out[0]);
  }
  const auto count = static_cast<std::int64_t>(group.ranks.size());
  const std::int64_t self = std::ranges::find(group.ranks, rank) - group.ranks.begin();
  Meeting& meeting = meeting_of(group);
  meeting.inputs[static_cast<std::size_t>(self)] = arguments.in;
  wait_for_all(meeting, count);
  complete_collective(operation, meeting.inputs, self, arguments,
                      [&] { wait_for_all(meeting, count); });
}

template class HostCommunicator<float>;
template class HostCommunicator<double>;

}  // namespace shardplan
