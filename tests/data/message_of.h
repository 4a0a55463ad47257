// The message of the InputError that a call throws, for tests that check it word for word.
#pragma once

#include <string>

#include "data/read/input_error.h"

namespace shardplan {

template <class Function>
std::string message_of(const Function& function) {
  try {
    function();
  } catch (const InputError& error) { return error.what(); }
  return "no error";
}

}  // namespace shardplan
