// A Python list of integers as Megatron-LM's arguments write it: ([0]*1+[1]*15).
#include "data/arguments/integer_pattern.h"

#include <charconv>

#include "data/arguments/run_settings.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

constexpr std::size_t kLongest = 1 << 16;  // items
constexpr int kDeepest = 16;               // parentheses

// sum = product { + product }; product = atom { * integer }; atom = [integers] or (sum).
class PatternReader {
 public:
  PatternReader(const std::string& text, const std::string& place) : text_(text), place_(place) {}

  std::vector<std::int64_t> whole() {
    std::vector<std::int64_t> items = sum(0);
    if (at_ != text_.size()) {
      throw wrong();
    }
    return items;
  }

 private:
  using Items = std::vector<std::int64_t>;

  InputError wrong() const {
    return InputError(place_ + "found \"" + shown(text_, Encoding::kUnchecked) +
                      "\", expected a list such as [0]*3+[1]*12");
  }
  bool take(char letter) {
    while (at_ < text_.size() && text_[at_] == ' ') { ++at_; }
    const bool found = at_ < text_.size() && text_[at_] == letter;
    at_ += found ? 1 : 0;
    return found;
  }
  std::int64_t integer() {
    take(' ');
    std::int64_t value = 0;
    const char* const end = text_.data() + text_.size();
    const std::from_chars_result read = std::from_chars(text_.data() + at_, end, value);
    if (read.ec != std::errc{}) {
      throw wrong();
    }
    at_ = static_cast<std::size_t>(read.ptr - text_.data());
    return value;
  }
  Items atom(int depth) {
    Items items;
    if (take('(')) {
      if (depth > kDeepest) {
        throw wrong();
      }
      items = sum(depth + 1);
      if (!take(')')) {
        throw wrong();
      }
      return items;
    }
    if (!take('[')) {
      throw wrong();
    }
    do { items.push_back(integer()); } while (take(','));
    if (!take(']')) {
      throw wrong();
    }
    return items;
  }
  Items product(int depth) {
    Items items = atom(depth);
    while (take('*')) {
      const std::int64_t times = integer();
      if (times < 0 || static_cast<std::size_t>(times) > kLongest ||
          items.size() * static_cast<std::size_t>(times) > kLongest) {
        throw wrong();
      }
      const Items once = items;
      items.clear();
      for (std::int64_t i = 0; i < times; ++i) {
        items.insert(items.end(), once.begin(), once.end());
      }
    }
    return items;
  }
  Items sum(int depth) {
    Items items = product(depth);
    while (take('+')) {
      const Items more = product(depth);
      items.insert(items.end(), more.begin(), more.end());
      if (items.size() > kLongest) {
        throw wrong();
      }
    }
    return items;
  }

  const std::string& text_;
  const std::string& place_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::int64_t> integer_pattern(const std::string& text, const std::string& place) {
  return PatternReader(text, place).whole();
}

}  // namespace shardplan
