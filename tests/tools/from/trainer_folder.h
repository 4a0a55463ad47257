// A folder with a run's file and what it names beside it, estimated by the program.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "tests/tools/commands/answer.h"

namespace shardplan {

inline constexpr const char* kZero3 = R"json({
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
  "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3, "reduce_bucket_size": 2e8, "overlap_comm": false}})json";

// A folder with run/FILE and configs/zero3.json beside it.
class TrainerFolder {
 public:
  TrainerFolder() {
    std::filesystem::create_directory(folder_.path() + "/run");
    std::filesystem::create_directory(folder_.path() + "/configs");
    write_file(folder_.path() + "/configs/zero3.json", kZero3);
  }
  std::string add(const std::string& name, const std::string& text) const {
    std::string file = folder_.path() + "/run/" + name;
    write_file(file, text);
    return file;
  }
  ProgramRun estimate(const std::string& name, const std::string& text,
                      const Words& more = {}) const {
    Words words = {"estimate", "--from", add(name, text), "--cluster", "1x8-h100"};
    words.insert(words.end(), more.begin(), more.end());
    return run_in_full(words);
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryDirectory folder_;
};

inline std::string numbers_of(const ProgramRun& run) {
  const std::size_t begin = run.out.find("\nMemory of one GPU");
  REQUIRE_MESSAGE(begin != std::string::npos, run.out << run.err);
  return run.out.substr(begin, run.out.find("\n\n", run.out.find("\nstep time")) - begin);
}

inline std::string with(std::string text, const std::string& part, const std::string& other) {
  REQUIRE(contains(text, part));
  return text.replace(text.find(part), part.size(), other);
}

}  // namespace shardplan
