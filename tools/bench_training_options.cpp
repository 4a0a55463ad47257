#include "tools/bench_training_options.h"

#include <stdexcept>

namespace shardplan {
namespace {

AttentionKernels attention_of(const std::string& word) {
  if (word != "fastest" && word != "own") {
    throw std::invalid_argument("--attention: found '" + word + "', expected fastest or own");
  }
  return word == "own" ? AttentionKernels::kOwn : AttentionKernels::kFastest;
}

Collectives collectives_of(const std::string& word) {
  if (word != "fastest" && word != "nccl") {
    throw std::invalid_argument("--collectives: found '" + word + "', expected fastest or nccl");
  }
  return word == "nccl" ? Collectives::kNccl : Collectives::kFastest;
}

// An option that takes a value; false: there is none of this name.
bool read_value(std::string_view word, const std::string& value, TrainingOptions& options) {
  const auto names = [&](std::string_view name) { return word == name; };
  if (names("--seconds")) {
    options.seconds = std::stod(value);
  } else if (names("--gemm-seconds")) {
    options.gemm_seconds = std::stod(value);
  } else if (names("--minutes")) {
    options.minutes = std::stod(value);
  } else if (names("--gpus")) {
    options.num_gpus = std::stoll(value);
  } else if (names("--gpu")) {
    options.gpu = value;
  } else if (names("--out")) {
    options.out = value;
  } else if (names("--limits")) {
    options.limits = value;
  } else if (names("--commit")) {
    options.commit = value;
  } else if (names("--tune")) {
    options.candidates = std::stoi(value);
  } else if (names("--products")) {
    options.products = value;
  } else if (names("--attention")) {
    options.attention = attention_of(value);
  } else if (names("--collectives")) {
    options.collectives = collectives_of(value);
  } else {
    return false;
  }
  return true;
}

}  // namespace

TrainingOptions training_options(const std::vector<std::string_view>& words) {
  TrainingOptions options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--profile") {
      options.profiles = true;
    } else if (options.file.empty() && !word.starts_with("--")) {
      options.file = word;
    } else if (i + 1 == words.size() || !read_value(word, std::string(words[i + 1]), options)) {
      throw std::invalid_argument("unexpected '" + std::string(word) + "', or it needs a value");
    } else {
      ++i;
    }
  }
  constexpr double kGemmSeconds = 60;
  if (options.gemm_seconds < 0) {
    options.gemm_seconds = options.file.empty() ? kGemmSeconds : 0;
  }
  return options;
}

std::string training_command(const std::vector<std::string_view>& words) {
  std::string text = "bench_training";
  for (const std::string_view word : words) {
    text += ' ';
    text += word;
  }
  return text;
}

}  // namespace shardplan
