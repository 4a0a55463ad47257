// Random case lines, of all frameworks, models, clusters and fields of a plan, whose plans are
// valid: what a sweep asks the estimator. Deterministic for a seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/case_line.h"

namespace shardplan {

// Members of a JSON object, one after the other.
class Members {
 public:
  Members& add(std::string_view name, const std::string& value);
  Members& add(std::string_view name, std::int64_t value);
  Members& add_word(std::string_view name, std::string_view word);
  Members& add_bool(std::string_view name, bool value);
  const std::string& text() const { return text_; }
  std::string object() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

struct RandomCaseLine {
  std::string text;
  Case read;
};

class RandomCaseLines {
 public:
  RandomCaseLines(const Library& library, std::uint64_t seed);
  // Of this framework alone.
  RandomCaseLines(const Library& library, std::uint64_t seed, const std::string& framework);

  // Draws until the reader takes a line and no rule of the framework refuses its plan.
  RandomCaseLine next();
  // The same with any plan that the reader takes.
  RandomCaseLine next_readable();

 private:
  // Everything but the plan, which may be drawn several times for one of these.
  struct Asked {
    std::string framework;
    std::string members;
    std::int64_t gpus_per_node = 1;
    std::int64_t num_layers = 1;
    bool has_experts = false;
  };

  bool chance(double share);
  std::int64_t between(std::int64_t low, std::int64_t high);
  template <class Value>
  const Value& one_of(const std::vector<Value>& values);
  std::int64_t pick(std::initializer_list<std::int64_t> values);
  template <class Rows>
  std::string word_of(const Rows& rows);

  Asked job();
  std::string model(Asked& asked);
  std::string config(Asked& asked);
  std::string training(std::int64_t sequence_length);
  std::int64_t sequence_length();
  std::string options(const std::string& framework);
  std::string value_of_option(const ProfileOption& option);
  std::string plan(const Asked& asked);
  void add_pipeline(const Asked& asked, Members& members);
  void add_choices(Members& members);
  std::string recompute();

  const Library& library_;
  std::vector<std::string> models_;
  std::vector<std::string> frameworks_;
  std::vector<std::string> gpus_;
  std::mt19937_64 random_;
};

}  // namespace shardplan
