// What checks say about broken programs.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "validator/check/checks.h"

namespace shardplan {

// Every text must stand in one of the problems, which begins with `start`.
inline void check_problem(const Problems& problems, const std::vector<std::string>& texts,
                          const std::string& start = "") {
  std::string all;
  for (std::size_t i = 0; i < std::min<std::size_t>(problems.size(), 5); ++i) {
    all += problems[i] + "\n";
  }
  INFO(all);
  CHECK(std::ranges::any_of(problems, [&](const std::string& problem) {
    return problem.starts_with(start) && std::ranges::all_of(texts, [&](const std::string& text) {
             return problem.find(text) != std::string::npos;
           });
  }));
}

}  // namespace shardplan
