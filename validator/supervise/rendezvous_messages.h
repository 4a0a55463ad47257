// What the rendezvous's two sides say to each other.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardplan {

// A message: eight bytes of length in network order, then the text. The answer to a request begins
// with '+' or, with the reason, '-'.
inline constexpr std::size_t kLengthBytes = 8;
inline constexpr std::int64_t kMaxMessageBytes = 64 << 20;  // of a key or a value
inline constexpr std::string_view kNotInTime = "nobody has set it in time";
inline constexpr std::string_view kClaimed = "claimed";

bool send_message(int socket, const std::string& text);
// Nothing where the peer went away, the time is over, or the length is absurd.
std::optional<std::string> receive_message(int socket,
                                           std::chrono::steady_clock::time_point deadline);
// That a text which begins with it has; it is kLengthBytes long at least.
std::uint64_t length_in(const std::string& framed);

}  // namespace shardplan
