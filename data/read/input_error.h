// A user's mistake: exit code 2 and one line that names the place, what was found, what was
// expected; below it may stand a second one with the way out.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace shardplan {

// what() is the whole line, e.g. `x.json:3: /num_heads: found -1, expected an integer >= 1`.
struct InputError : std::runtime_error {
  explicit InputError(const std::string& message, std::string way_out = "")
      : std::runtime_error(message), hint(std::move(way_out)) {}
  std::string hint;  // what to write instead, e.g. a command that pastes; may be empty
};

}  // namespace shardplan
