// Every door by which bytes from outside come into the programs, each as one function that takes
// any bytes. A refusal that is documented returns; anything else that is thrown is a finding.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shardplan {

struct Door {
  std::string_view name;  // of its folder under tests/fuzz/corpus
  void (*open)(const std::string& bytes);
};

std::span<const Door> doors();

// nullptr if no door has this name.
const Door* door_named(std::string_view name);

// Makes a new folder the working directory: what doors read and write by relative paths is in it.
void enter_temporary_folder();

}  // namespace shardplan
