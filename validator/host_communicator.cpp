#include "validator/host_communicator.h"

#include <algorithm>
#include <stdexcept>

namespace shardplan {
namespace {

// Part `index` of `count` equal parts of a view, or the view that stands for it.
template <class T>
struct Part {
  const HostView<T>& view;
  std::int64_t first = 0;
  std::int64_t elements = 0;

  T& operator[](std::int64_t element) const { return view[first + element]; }
};

template <class T>
Part<T> part_of(const std::vector<HostView<T>>& views, std::int64_t index, std::int64_t count) {
  if (views.size() > 1) {
    const HostView<T>& view = views[static_cast<std::size_t>(index)];
    return {.view = view, .first = 0, .elements = view.elements()};
  }
  const std::int64_t elements = views[0].elements() / count;
  return {.view = views[0], .first = index * elements, .elements = elements};
}

// The sum over the members of a part of their inputs, in the order of the members.
template <class T>
std::vector<T> summed(const std::vector<std::vector<HostView<T>>>& inputs, std::int64_t index,
                      std::int64_t count) {
  std::vector<T> sum;
  for (const std::vector<HostView<T>>& views : inputs) {
    const Part<T> part = part_of(views, index, count);
    sum.resize(static_cast<std::size_t>(part.elements), T{0});
    for (std::size_t e = 0; e < sum.size(); ++e) { sum[e] += part[static_cast<std::int64_t>(e)]; }
  }
  return sum;
}

template <class T>
void write(const HostView<T>& view, const std::vector<T>& values) {
  for (std::size_t e = 0; e < values.size(); ++e) {
    view[static_cast<std::int64_t>(e)] = values[e];
  }
}

template <class T>
void gather(const std::vector<std::vector<HostView<T>>>& inputs,
            const std::vector<HostView<T>>& out) {
  const auto count = static_cast<std::int64_t>(inputs.size());
  for (std::int64_t member = 0; member < count; ++member) {
    const HostView<T>& in = inputs[static_cast<std::size_t>(member)][0];
    const Part<T> part = part_of(out, member, count);
    if (&part[0] == in.data) {
      continue;  // in place
    }
    for (std::int64_t e = 0; e < part.elements; ++e) { part[e] = in[e]; }
  }
}

// Rows of all members that chose one of this member's experts. in: rows, choices, where they go,
// and their weights, if any.
template <class T>
void dispatch(const std::vector<std::vector<HostView<T>>>& inputs, std::int64_t self,
              const HostArguments<T>& a) {
  const std::int64_t run = self / a.attributes.copies;
  for (const std::vector<HostView<T>>& theirs : inputs) {
    const HostView<T>& x = theirs[0];
    for (std::int64_t i = 0; i < theirs[1].elements(); ++i) {
      const auto expert = static_cast<std::int64_t>(theirs[1][i]);
      const auto row = static_cast<std::int64_t>(theirs[2][i]);
      if (expert / a.attributes.experts != run || row >= a.out[0].rows) {
        continue;
      }
      for (std::int64_t j = 0; j < x.cols; ++j) { a.out[0](row, j) = x(i / theirs[1].cols, j); }
      if (theirs[3].present()) {
        a.out[1](row, 0) = theirs[3][i];
      }
    }
  }
}

// What the experts of this member's choices made of its rows.
template <class T>
void combine(const std::vector<std::vector<HostView<T>>>& inputs, const HostArguments<T>& a) {
  const HostView<T>& choices = a.in[1];
  for (std::int64_t e = 0; e < a.out[0].elements() && !a.attributes.accumulate; ++e) {
    a.out[0][e] = 0;
  }
  for (std::int64_t i = 0; i < choices.elements(); ++i) {
    const auto expert = static_cast<std::int64_t>(choices[i]);
    const auto row = static_cast<std::int64_t>(a.in[2][i]);
    const bool fits = row < a.in[0].rows;
    const std::int64_t first = expert / a.attributes.experts * a.attributes.copies;
    T scalar = 0;
    for (std::int64_t copy = 0; copy < a.attributes.copies && fits; ++copy) {
      const std::vector<HostView<T>>& theirs = inputs[static_cast<std::size_t>(first + copy)];
      for (std::int64_t j = 0; j < a.out[0].cols; ++j) {
        a.out[0](i / choices.cols, j) += theirs[0](row, j);
      }
      scalar += theirs[3].present() ? theirs[3](row, 0) : 0;
    }
    if (a.out[1].present()) {
      a.out[1][i] = scalar;
    }
  }
}

}  // namespace

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
  write(where, messages_.at(address));
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
  if (operation.kind == OpKind::kAllGather) {
    gather(meeting.inputs, arguments.out);
    wait_for_all(meeting, count);
    return;
  }
  if (operation.kind == OpKind::kRingShift) {
    const HostView<T> in = meeting.inputs[static_cast<std::size_t>((self + count - 1) % count)][0];
    for (std::int64_t e = 0; e < in.elements(); ++e) { arguments.out[0][e] = in[e]; }
    wait_for_all(meeting, count);
    return;
  }
  if (operation.kind == OpKind::kExpertDispatch || operation.kind == OpKind::kExpertCombine) {
    operation.kind == OpKind::kExpertDispatch ? dispatch(meeting.inputs, self, arguments)
                                              : combine(meeting.inputs, arguments);
    wait_for_all(meeting, count);
    return;
  }
  const bool is_whole = operation.kind == OpKind::kAllReduce;
  const std::vector<T> sum = summed(meeting.inputs, is_whole ? 0 : self, is_whole ? 1 : count);
  wait_for_all(meeting, count);
  write(arguments.out[0], sum);
}

template class HostCommunicator<float>;
template class HostCommunicator<double>;

}  // namespace shardplan
