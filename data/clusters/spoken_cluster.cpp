#include "data/clusters/spoken_cluster.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

namespace shardplan {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kBetween = " x*:_-";  // counts and the machine
constexpr std::size_t kMostDigits = 9;           // of a count

// The count that the text begins with, which is cut off with what stands between it and the next
// word; nothing, and the text as it was, where there is none or nothing stands between.
std::optional<std::int64_t> take_count(std::string_view& text) {
  const std::size_t end = text.find_first_not_of(kDigits);
  if (end == 0 || end == std::string_view::npos || end > kMostDigits ||
      kBetween.find(text[end]) == std::string_view::npos) {
    return std::nullopt;
  }
  std::int64_t count = 0;
  std::from_chars(text.data(), text.data() + end, count);
  const std::size_t next = text.find_first_not_of(kBetween, end);
  if (next == std::string_view::npos) {
    return std::nullopt;
  }
  text.remove_prefix(next);
  return count;
}

// "h100 x 8" and "h100:8".
std::optional<SpokenCluster> count_behind(std::string_view name) {
  const std::size_t last = name.find_last_not_of(kDigits);
  if (last == std::string_view::npos || last + 1 == name.size() ||
      name.size() - last - 1 > kMostDigits || kBetween.find(name[last]) == std::string_view::npos) {
    return std::nullopt;
  }
  const std::size_t end = name.find_last_not_of(kBetween, last);
  if (end == std::string_view::npos) {
    return std::nullopt;
  }
  SpokenCluster spoken;
  std::from_chars(name.data() + last + 1, name.data() + name.size(), spoken.total);
  spoken.machine = name.substr(0, end + 1);
  return spoken;
}

}  // namespace

std::optional<ShapedName> parse_shaped_name(const std::string& name) {
  ShapedName shaped;
  const char* const end = name.data() + name.size();
  // Counts that do not fit 64 bits are as wrong as any other that is out of range.
  const auto count = [end](const char* at, std::int64_t& value) {
    const std::from_chars_result result = std::from_chars(at, end, value);
    if (result.ec == std::errc::result_out_of_range) {
      value = std::numeric_limits<std::int64_t>::max();
    }
    return result.ptr;
  };
  const char* at = count(name.data(), shaped.nodes);
  if (at == name.data() || at == end || *at != 'x') {
    return std::nullopt;
  }
  const char* const second = at + 1;
  at = count(second, shaped.gpus_per_node);
  if (at == second || at == end || *at != '-') {
    return std::nullopt;
  }
  shaped.machine.assign(at + 1, end);
  return shaped;
}

std::vector<SpokenCluster> ways_to_read(const std::string& name) {
  std::vector<SpokenCluster> ways;
  std::string_view rest = name;
  if (rest.starts_with("gpu_")) {
    rest.remove_prefix(4);
  }
  if (const auto first = take_count(rest)) {
    const std::string behind_one(rest);
    if (const auto second = take_count(rest)) {
      ways.push_back({.nodes = *first, .gpus_per_node = *second, .machine = std::string(rest)});
    }
    ways.push_back({.total = *first, .machine = behind_one});
  }
  if (const auto behind = count_behind(name)) {
    ways.push_back(*behind);
  }
  ways.push_back({.machine = name});
  return ways;
}

}  // namespace shardplan
