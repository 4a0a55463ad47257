#include "validator/host/store_exchange.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace shardplan {
namespace {

void append(std::string& text, const void* data, std::size_t size) {
  text.append(static_cast<const char*>(data), size);
}

// Rows, columns and elements of every view, in the bytes of this machine. Absent views have none.
template <class T>
std::string packed(const std::vector<HostView<T>>& views) {
  std::string text;
  for (const HostView<T>& view : views) {
    const std::int64_t rows = view.present() ? view.rows : 0;
    append(text, &rows, sizeof(rows));
    append(text, &view.cols, sizeof(view.cols));
    for (std::int64_t e = 0; e < rows * view.cols; ++e) { append(text, &view[e], sizeof(T)); }
  }
  return text;
}

class Unpacker {
 public:
  explicit Unpacker(const std::string& text) : text_(text) {}
  bool at_end() const { return begin_ == text_.size(); }
  template <class Value>
  Value next() {
    Value value{};
    if (text_.size() - begin_ < sizeof(value)) {
      throw std::runtime_error("host exchange: a message that is too short");
    }
    std::memcpy(&value, text_.data() + begin_, sizeof(value));
    begin_ += sizeof(value);
    return value;
  }

 private:
  const std::string& text_;
  std::size_t begin_ = 0;
};

// What another member brought, and memory for it.
template <class T>
struct Brought {
  std::vector<std::vector<T>> elements;
  std::vector<HostView<T>> views;
};

template <class T>
Brought<T> unpacked(const std::string& text) {
  Brought<T> brought;
  Unpacker unpacker(text);
  while (!unpacker.at_end()) {
    const auto rows = unpacker.next<std::int64_t>();
    const auto cols = unpacker.next<std::int64_t>();
    std::vector<T>& elements = brought.elements.emplace_back();
    for (std::int64_t e = 0; e < rows * cols; ++e) { elements.push_back(unpacker.next<T>()); }
    HostView<T> view = {};
    if (rows > 0) {
      view = {.data = elements.data(), .rows = rows, .cols = cols, .row_step = cols, .step = 1};
    }
    brought.views.push_back(view);
  }
  return brought;
}

std::string key_of(const std::vector<std::int64_t>& ranks, std::int64_t meeting,
                   std::int64_t member) {
  std::string key = "group";
  for (const std::int64_t rank : ranks) { key.append(" ").append(std::to_string(rank)); }
  return key + "/" + std::to_string(meeting) + "/" + std::to_string(member);
}

std::string key_of(const std::tuple<std::int64_t, std::int64_t, std::int64_t>& address,
                   std::int64_t message) {
  const auto [from, to, tag] = address;
  return "message " + std::to_string(from) + " " + std::to_string(to) + " " + std::to_string(tag) +
         "/" + std::to_string(message);
}

}  // namespace

template <class T>
void HostStoreExchange<T>::send(const Address& address, const HostView<T>& what) {
  store_.set(key_of(address, num_messages_[address]++), packed<T>({what}));
}

template <class T>
void HostStoreExchange<T>::receive(const Address& address, const HostView<T>& where) {
  const std::string key = key_of(address, num_messages_[address]++);
  const Brought<T> brought = unpacked<T>(store_.get(key));
  store_.erase(key);
  for (std::int64_t e = 0; e < where.elements(); ++e) { where[e] = brought.views.at(0)[e]; }
}

template <class T>
void HostStoreExchange<T>::run(const Operation& operation, const Group& group, std::int64_t rank,
                               const HostArguments<T>& arguments) {
  const std::int64_t tag = operation.attributes.tag;
  if (operation.kind == OpKind::kSend || operation.kind == OpKind::kReceive) {
    const std::int64_t peer = group.ranks.at(static_cast<std::size_t>(operation.attributes.peer));
    return operation.kind == OpKind::kSend ? send({rank, peer, tag}, arguments.in[0])
                                           : receive({peer, rank, tag}, arguments.out[0]);
  }
  const auto count = static_cast<std::int64_t>(group.ranks.size());
  const std::int64_t self = std::ranges::find(group.ranks, rank) - group.ranks.begin();
  const std::int64_t meeting = num_meetings_[group.ranks]++;
  store_.set(key_of(group.ranks, meeting, self), packed<T>(arguments.in));
  // Whoever brings something to a meeting has read all of the one before the last.
  if (meeting >= 2) {
    store_.erase(key_of(group.ranks, meeting - 2, self));
  }
  std::vector<Brought<T>> brought(group.ranks.size());
  HostInputs<T> inputs(group.ranks.size());
  for (std::int64_t member = 0; member < count; ++member) {
    const auto m = static_cast<std::size_t>(member);
    if (member == self) {
      inputs[m] = arguments.in;
    } else {
      brought[m] = unpacked<T>(store_.get(key_of(group.ranks, meeting, member)));
      inputs[m] = brought[m].views;
    }
  }
  complete_collective<T>(operation, inputs, self, arguments, [] {});
}

template class HostStoreExchange<float>;
template class HostStoreExchange<double>;

}  // namespace shardplan
