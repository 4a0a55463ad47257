#include "validator/supervise/rendezvous_request.h"

#include <charconv>
#include <iterator>
#include <string_view>

namespace shardplan {
namespace {

constexpr std::int64_t kLongestWaitMs = std::int64_t{365} * 24 * 3600 * 1000;

// The number at the beginning of the text, and the blank behind it, are taken from it.
std::optional<std::int64_t> taken_number(std::string_view& text, std::int64_t most) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc{} || number < 0 || number > most || text.substr(length, 1) != " ") {
    return std::nullopt;
  }
  text.remove_prefix(length + 1);
  return number;
}

}  // namespace

// "<letter><milliseconds> <bytes of the key> <key><value>"
std::string text_of(const RendezvousRequest& request) {
  return request.what + std::to_string(request.timeout_ms) + " " +
         std::to_string(request.key.size()) + " " + request.key + request.value;
}

std::optional<RendezvousRequest> rendezvous_request_of(const std::string& text) {
  std::string_view rest(text);
  rest.remove_prefix(text.empty() ? 0 : 1);
  const auto timeout_ms = taken_number(rest, kLongestWaitMs);
  const auto key_bytes = timeout_ms ? taken_number(rest, std::ssize(rest)) : std::nullopt;
  if (!key_bytes || *key_bytes > std::ssize(rest)) {
    return std::nullopt;
  }
  const auto key = static_cast<std::size_t>(*key_bytes);
  return RendezvousRequest{.what = text.front(),
                           .timeout_ms = *timeout_ms,
                           .key = std::string(rest.substr(0, key)),
                           .value = std::string(rest.substr(key))};
}

}  // namespace shardplan
