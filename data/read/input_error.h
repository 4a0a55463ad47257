// A user's mistake: exit code 2 and one line that names the place, what was found, what was
// expected.
#pragma once

#include <stdexcept>
#include <string>

namespace shardplan {

// what() is the whole line, e.g. `x.json:3: /num_heads: found -1, expected an integer >= 1`.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace shardplan
