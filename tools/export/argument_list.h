// Arguments one after the other, as writers of a framework add them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

class ArgumentList {
 public:
  void add(std::string name, std::string value, std::string comment = {}) {
    arguments_.push_back(
        {.name = std::move(name), .values = {std::move(value)}, .comment = std::move(comment)});
  }
  void add(std::string name, const char* value, std::string comment = {}) {
    add(std::move(name), std::string(value), std::move(comment));
  }
  void add(std::string name, std::int64_t value, std::string comment = {}) {
    add(std::move(name), std::to_string(value), std::move(comment));
  }
  void add_switch(std::string name, std::string comment = {}) {
    arguments_.push_back({.name = std::move(name), .comment = std::move(comment)});
  }
  void add_switch_if(bool condition, std::string name) {
    if (condition) {
      add_switch(std::move(name));
    }
  }
  void add_list(std::string name, std::vector<std::string> values, std::string comment = {}) {
    arguments_.push_back(
        {.name = std::move(name), .values = std::move(values), .comment = std::move(comment)});
  }
  const std::vector<ExportedArgument>& arguments() const { return arguments_; }

 private:
  std::vector<ExportedArgument> arguments_;
};

}  // namespace shardplan
